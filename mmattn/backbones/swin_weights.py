"""How weights of a Swin Transformer are read, in five code bases, and those of ELSA-Swin's release."""

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..layers.starts import TABLE, is_table
from ..ops.resize import interpolated
from ..weights import CheckpointError, Translation, fit_tables, renamed, take_out
from .stages_weights import blocks_of, place_outputs, start_attention

LAYOUTS = {
    'a Swin Transformer': r'(layers|stages|features)\.\d+(\.blocks)?\.\d+\.attn\.(w_msa|relative_position_bias)',
    'an ELSA-Swin': r'layers\.\d+\.blocks\.\d+\.attn\.ghost_head',
}
SOURCE = 'a Swin Transformer'
RELEASES = {r'elsa': ('elsa_swin_tiny.pth, elsa_swin_small.pth, elsa_swin_base.pth', 'https://github.com/damo-cv/ELSA')}
HEAD_NAMES = {'head.fc.': 'head.fc.', 'head.': 'head.fc.'}  # timm's, Microsoft's
#: side of the largest windows whose first pass is compared. They are as large as the last map of an image of 1024
#: pixels; released Swin Transformers have 7 and 12. The biases of a window are its side to the power of 4, times heads.
MOST_WINDOW = 32
#: parts of names in the layouts of torchvision, of MMDetection, MMSegmentation and MMPretrain, and of ELSA-Swin -> in
#: Microsoft's, which are those of SwinFrame
RENAMES = {
    r'^features\.0\.0\.': 'patch_embed.proj.',
    r'^features\.0\.2\.': 'patch_embed.norm.',
    r'^features\.(\d+)\.': lambda match: _module(int(match[1])),
    r'\.mlp\.0\.': '.mlp.fc1.',
    r'\.mlp\.3\.': '.mlp.fc2.',
    r'^patch_embed\.projection\.': 'patch_embed.proj.',
    r'^stages\.': 'layers.',
    r'\.attn\.w_msa\.': '.attn.',
    r'\.ffn\.layers\.0\.0\.': '.mlp.fc1.',
    r'\.ffn\.layers\.1\.': '.mlp.fc2.',
    r'\.attn\.pre_proj\.': '.attn.qkv.',
    r'\.attn\.post_proj\.': '.attn.proj.',
    r'\.attn\.rb$': '.attn.relative_position_bias_table',
}


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Takes a Swin Transformer, places the norms of the outputs, and resizes tables of relative positions.

    A frame whose stages compute Swin's attention takes a Swin Transformer strictly. With a warm start every frame takes
    it, and token mixers take what they can by their method ``warm_start``. ELSA-Swin's release also stores
    ``relative_id``, an index that is not needed here.
    """
    tensors = {name: value for name, value in state_dict.items() if not name.endswith('.relative_id')}
    indices = [name for name in state_dict if name not in tensors]
    masks = []
    if warm_start:
        tensors, masks = _from_swin(tensors, model)
    elif is_swin(tensors) and all(getattr(block.attn, 'is_swin', False) for block in blocks_of(model).values()):
        try:
            tensors, masks = _from_swin(tensors, model)
        except KeyError as error:
            raise CheckpointError(f'the weights of a Swin Transformer lack {error}') from None
    dropped, fresh = place_outputs(tensors, model)
    own = model.state_dict()
    for ends, fitted in ((('.rb', '.rk', '.rq'), _fitted), ((f'.{TABLE}',), _fitted_transposed)):
        fit_tables(tensors, own, [name for name in tensors if name.endswith(ends)], fitted)
    return Translation(tensors, dropped + masks + indices, fresh)


def source_config(state_dict: dict[str, Tensor], model: nn.Module) -> dict:
    """Swin Transformer, with the windows that its tables are for in each stage."""
    attention = [dict(type='WindowAttention') for _ in range(model.num_stages)]
    for name, value in microsoft_layout(state_dict).items():
        match = re.fullmatch(r'layers\.(\d+)\.blocks\.0\.attn\.relative_position_bias_table', name)
        if match and int(match[1]) < model.num_stages:
            # Of odd shapes, too, which loading refuses
            side = max((math.isqrt(value.shape[:1].numel()) + 1) // 2, 1)
            if side > MOST_WINDOW:
                raise CheckpointError(
                    f'{name} {tuple(value.shape)} is for windows of {side} x {side} pixels of the map, and at most '
                    f'{MOST_WINDOW} x {MOST_WINDOW} are compared'
                )
            attention[int(match[1])]['window_size'] = side
    arch = {key: model.arch[key] for key in ('embed_dim', 'depths', 'num_heads')}
    shared = ('shift_small_maps', 'mlp_ratio', 'in_channels', 'out_indices')
    return dict(type='SwinFrame', arch=arch, attention=attention, **{name: getattr(model, name) for name in shared})


def is_swin(names: Iterable[str]) -> bool:
    """Whether names are those of a Swin Transformer in one of the layouts, without another token mixer in its frame."""
    names = list(names)
    # BEiT has tables, too.
    pattern = r'(layers|stages|features)\.\d+\..*\battn\.(w_msa\.)?relative_position_bias_table$'
    of_others = any(re.search(r'\.attn\.(attn|ghost)\.', name) for name in names)
    return not of_others and any(re.search(pattern, name) for name in names)


def microsoft_layout(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a Swin Transformer under Microsoft's names, whichever of the layouts they have.

    - timm merges patches at the start of a stage, Microsoft at the end of the one before.
    - torchvision numbers all modules of a sequence.
    - MMDetection, MMSegmentation and MMPretrain have names of their own. Their patch merging reads the channels of
      four patches by channel, then by row and column, Microsoft's by column, then by row, then by channel.
    - ELSA-Swin has the projection to values first, and a table by key minus query.

    A tensor of another shape stays as it is.
    """
    tensors = {}
    for name, value in state_dict.items():
        if re.match(r'stages\.\d+\.downsample\.', name) and value.dim() and value.shape[-1] % 4 == 0:
            value = value.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)
        elif '.attn.pre_proj.' in name and value.dim():
            value = value.roll(-(len(value) // 3), 0)
        elif name.endswith('.attn.rb') and value.dim() == 2:
            value = value.flip(1).t()
        tensors[name] = value
    tensors = renamed(tensors, RENAMES)
    if not any(name.startswith('layers.0.downsample.') for name in tensors):
        tensors = renamed(tensors, {r'^layers\.(\d+)\.downsample\.': _earlier})
    return tensors


def _module(number: int) -> str:
    """torchvision's features: the embedding, then the blocks of a stage and a patch merging in turn."""
    return f'layers.{number // 2}.blocks.' if number % 2 else f'layers.{number // 2 - 1}.downsample.'


def _earlier(match: re.Match) -> str:
    return f'layers.{int(match[1]) - 1}.downsample.'


def _from_swin(state_dict: dict[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """Weights of a Swin Transformer under the frame's names, and the names of those that have no place.

    Raises:
        KeyError: naming a tensor that should be in the state dict.
        CheckpointError: naming a tensor of another shape that has to be rearranged.
    """
    tensors, blocks = microsoft_layout(state_dict), blocks_of(model)
    masks = take_out(tensors, *(f'{name}.attn_mask' for name in blocks))
    for name, block in blocks.items():
        if hasattr(block.attn, 'warm_start'):
            tensors[f'{name}.attn.relative_position_bias_table']  # raises the error
    return tensors, masks + start_attention(tensors, model)


def _fitted(table: Tensor, shape: torch.Size) -> Tensor | None:
    """A table of relative positions (heads, a * a) -> (heads, b * b); None if it is not such a table."""
    if not is_table(table.shape, shape):
        return None
    side = math.isqrt(shape[1])
    return interpolated(table.unflatten(1, (math.isqrt(table.shape[1]), -1))[None], side, side).view(shape)


def _fitted_transposed(table: Tensor, shape: torch.Size) -> Tensor | None:
    """Swin's table (a * a, heads) -> (b * b, heads); None if it is not such a table."""
    fitted = _fitted(table.t(), shape[::-1]) if table.dim() == 2 else None
    return None if fitted is None else fitted.t()
