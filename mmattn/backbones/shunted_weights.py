"""How weights of the Shunted Transformer are read, and those of PVTv2 and SegFormer's MiT, in four code bases."""

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..layers import EnhancedAttention, ShuntedAttention, SpatialReductionAttention
from ..layers.starts import pvt_of_shunted, start_token_mixers
from ..weights import CheckpointError, Translation, renamed, take_out

#: PVTv2 in any of the layouts: the authors', timm's, OpenMMLab's
PVT = r'(block\d\.\d+\.attn\.sr\.|stages\.\d\.blocks\.\d+\.mlp\.dwconv\.|layers\.\d\.1\.\d+\.attn\.attn\.in_proj)'
SHUNTED = r'block\d\.\d+\.attn\.(sr1|local_conv)'
LAYOUTS = {
    'a Shunted Transformer': SHUNTED,
    'a TransNeXt': r'block\d\.\d+\.attn\.(query_embedding|temperature)',  # before PVTv2, whose names it has, too
    'a Pyramid Vision Transformer': PVT,
}
SOURCE = 'a Pyramid Vision Transformer'
RELEASES = {
    r'shunted|ckpt_[TSB]\b': (
        'ckpt_T.pth, ckpt_S.pth, ckpt_B.pth',
        'https://github.com/OliverRensu/Shunted-Transformer',
    )
}
#: parts of names in timm's layout, and in that of MMDetection and MMSegmentation -> in the authors'
RENAMES = {
    r'^stages\.(\d)\.blocks\.': lambda match: f'block{int(match[1]) + 1}.',
    r'^stages\.(\d)\.downsample\.': lambda match: f'patch_embed{int(match[1]) + 1}.',
    r'^stages\.(\d)\.norm\.': lambda match: f'norm{int(match[1]) + 1}.',
    r'^patch_embed\.': 'patch_embed1.',
    r'^layers\.(\d)\.0\.projection\.': lambda match: f'patch_embed{int(match[1]) + 1}.proj.',
    r'^layers\.(\d)\.0\.': lambda match: f'patch_embed{int(match[1]) + 1}.',
    r'^layers\.(\d)\.1\.': lambda match: f'block{int(match[1]) + 1}.',
    r'^layers\.(\d)\.2\.': lambda match: f'norm{int(match[1]) + 1}.',
    r'\.attn\.attn\.out_proj\.': '.attn.proj.',
    r'\.ffn\.layers\.0\.': '.mlp.fc1.',
    r'\.ffn\.layers\.1\.': '.mlp.dwconv.',
    r'\.ffn\.layers\.4\.': '.mlp.fc2.',
    r'\.dwconv\.dwconv\.': '.dwconv.',
}


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Leaves out the classifier and the stages that are not built. With a warm start the weights are PVTv2's or a
    Shunted Transformer's, and token mixers take what they can by their method ``from_pvt``."""
    tensors, of_pvt = dict(state_dict), is_pvt(state_dict)
    if of_pvt:
        tensors = pvt_layout(tensors, detail=model.settings['feed_forward'] == 'detail')
    elif warm_start and not is_shunted(tensors):
        raise CheckpointError('they are not in the layout of its authors, timm or OpenMMLab')
    tensors = {name.replace('.dwconv.dwconv.', '.dwconv.'): value for name, value in tensors.items()}
    dropped = leave_out(tensors, model)
    if warm_start:
        dropped += _start_attention(tensors, model, of_pvt)
    return Translation(tensors, dropped)


def leave_out(tensors: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Remove the classifier and the stages that are not built; returns the names."""
    unbuilt = range(model.num_built + 1, model.num_stages + 1)
    return take_out(tensors, 'head.', *(f'{part}{i}.' for i in unbuilt for part in ('patch_embed', 'block', 'norm')))


def source_config(state_dict: dict[str, Tensor], model: nn.Module) -> dict:
    """PVTv2 or a Shunted Transformer, with the rates of its filters."""
    sizes = dict(mlp_ratios=model.mlp_ratios, in_channels=model.in_channels, out_indices=model.out_indices)
    if not is_pvt(state_dict):
        rates = [rates_of_shunted(state_dict, f'block{i + 1}.0.attn.') for i in range(model.num_stages)]
        own = dict(stem=model.stem, stem_convs=model.stem_convs, feed_forward=model.settings['feed_forward'])
        return dict(type='ShuntedTransformer', arch=model.arch, reductions=rates, **own, **sizes)
    tensors = pvt_layout(state_dict, detail=False)
    filters = [tensors.get(f'block{i + 1}.0.attn.sr.weight') for i in range(model.num_stages)]
    return dict(
        type='ShuntedTransformer',
        arch=dict(model.arch, num_heads=heads_of_pvt(model.channels), stem_convs=0),
        reductions=[1 if each is None else each.shape[-1] for each in filters],
        stem='convolution',
        feed_forward='conv',
        attention=dict(type='SpatialReductionAttention'),
        **sizes,
    )


def rates_of_shunted(state_dict: dict[str, Tensor], prefix: str) -> int | list[int]:
    """The rates of the groups of an attention; 1 if it merges no tokens."""
    filters = (state_dict.get(f'{prefix}sr{i + 1}.weight') for i in range(len(state_dict)))
    rates = [each.shape[-1] for each in itertools.takewhile(lambda each: each is not None, filters)]
    return rates or 1


def is_shunted(names: Iterable[str]) -> bool:
    return any(re.match(SHUNTED, name) for name in names)


def is_pvt(names: Iterable[str]) -> bool:
    """Whether names are those of a published PVTv2. The backbone's own have one "dwconv", the authors' two."""
    names = list(names)
    own = any(re.match(r'block\d\.\d+\.mlp\.dwconv\.weight', name) for name in names)
    return not own and any(re.match(PVT, name) for name in names)


def pvt_layout(state_dict: dict[str, Tensor], detail: bool) -> dict[str, Tensor]:
    """The weights of a PVTv2 under the names of :class:`mmattn.backbones.ShuntedTransformer`.

    - OpenMMLab has query, key and value in one matrix, and the linear layers of the feed-forward layer as 1 x 1
      convolutions.
    - timm and OpenMMLab number the stages from 0.

    Args:
        detail: whether the feed-forward layers add their input to the depth-wise convolution, as Shunted's do. Then the
            filters are PVTv2's without the identity, which computes the same.

    Raises:
        CheckpointError: naming a tensor of another shape that has to be split.
    """
    tensors = {}
    for name, value in renamed(state_dict, RENAMES).items():
        if '.attn.attn.in_proj_' in name:
            place, kind = name.split('attn.in_proj_')
            if value.dim() != (2 if kind == 'weight' else 1) or len(value) % 3:
                raise CheckpointError(f'a tensor is of another shape: {name} {tuple(value.shape)}')
            third = len(value) // 3
            tensors[f'{place}q.{kind}'], tensors[f'{place}kv.{kind}'] = value.split((third, 2 * third))
            continue
        if re.search(r'\.mlp\.fc\d\.weight$', name) and value.shape[2:] == (1, 1):
            value = value.flatten(1)
        if detail and name.endswith('.mlp.dwconv.weight') and value.shape[1:] == (1, 3, 3):
            value = value - F.pad(value.new_ones(1, 1, 1, 1), (1, 1, 1, 1))
        tensors[name] = value
    return tensors


def heads_of_pvt(dims: Sequence[int]) -> list[int]:
    """Heads per stage of a PVTv2 or MiT. Each head has as many channels as the first stage.

    Raises:
        CheckpointError: if there is none with these channels.
    """
    if any(dim % dims[0] for dim in dims):
        raise CheckpointError(
            f'no Pyramid Vision Transformer has the embed_dims {dims}: they must be multiples of {dims[0]}'
        )
    return [dim // dims[0] for dim in dims]


def _start_attention(tensors: dict[str, Tensor], model: nn.Module, of_pvt: bool) -> list[str]:
    """Replace the tensors of PVTv2's attention, or of Shunted's, by those that the model's token mixers make of them.

    Returns:
        the names of those that have no place.

    Raises:
        KeyError: naming a tensor that should be there.
        CheckpointError: if numbers of heads or rates do not go together, or a tensor has another shape.
    """
    heads = heads_of_pvt(model.channels) if of_pvt else model.settings['num_heads']
    own = SpatialReductionAttention if of_pvt else (ShuntedAttention, EnhancedAttention)
    starts = {}
    for i, num_heads in enumerate(heads[: model.num_built], start=1):
        for j, block in enumerate(getattr(model, f'block{i}')):
            name, can_start = f'block{i}.{j}.attn.', hasattr(block.attn, 'from_pvt')
            if isinstance(block.attn, own):
                if hasattr(block.attn, 'rename_tensors'):
                    block.attn.rename_tensors(tensors, name)
                continue
            if can_start and not of_pvt:
                pvt_of_shunted(tensors, name, model.channels[i - 1])
            starts[name] = partial(block.attn.from_pvt, num_heads=num_heads) if can_start else None
    dropped = start_token_mixers(tensors, starts)
    for name in model.state_dict():
        if '.attn.' not in name:
            tensors[name]  # raises the error
    return dropped
