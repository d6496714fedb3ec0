"""How weights of plain ViTs are read: timm's, Meta's files of DINOv2 and DINOv3, and MSF-ViT's release."""

import math
import re

import torch
from torch import Tensor, nn

from ..layers import SelfAttention
from ..layers.starts import start_token_mixers
from ..ops.resize import resampled
from ..weights import CheckpointError, Translation, fit_tables, renamed, take, take_out
from .patch_embed import DeiTEmbed, SimpleEmbed

LAYOUTS = {
    'a ViT or DeiT': r'(?<!\d\.)blocks\.\d+\.attn\.qkv\.|layers\.\d+\.attn\.attn\.in_proj_weight',
    'a mean-shift (MSF) ViT': r'transformer\.layers\.\d+\.0\.to_qkvp\.|(?<!\d\.)blocks\.\d+\.attn\.pre_proj\.',
}
HEAD_NAMES = {'head.': 'head.fc.', 'linear_head.0.': 'head.norm.', 'linear_head.1.': 'head.fc.'}
SOURCE = 'a ViT or DeiT'
#: parts of names in timm's Eva, which DINOv3 is, and in Meta's files -> in timm's VisionTransformer. DeiT's token of
#: distillation is a register.
RENAMES = {
    r'^(storage_tokens|register_tokens|dist_token)$': 'reg_token',
    r'^(blocks\.\d+)\.gamma_(\d)$': r'\1.ls\2.gamma',
    r'^(blocks\.\d+\.mlp)\.w1\.': r'\1.fc1_g.',
    r'^(blocks\.\d+\.mlp)\.w2\.': r'\1.fc1_x.',
    r'^(blocks\.\d+\.mlp)\.w3\.': r'\1.fc2.',
    # MSF-ViT's release
    r'^to_patch_embedding\.1\.': 'patch_embed.patch_norm.',
    r'^to_patch_embedding\.2\.': 'patch_embed.proj.',
    r'^to_patch_embedding\.3\.': 'patch_embed.norm.',
    r'^transformer\.layers\.(\d+)\.0\.norm\.': r'blocks.\1.norm1.',
    r'^transformer\.layers\.(\d+)\.0\.to_qkvp?\.': r'blocks.\1.attn.pre_proj.',
    r'^transformer\.layers\.(\d+)\.0\.to_out\.': r'blocks.\1.attn.post_proj.',
    r'^transformer\.layers\.(\d+)\.1\.net\.0\.': r'blocks.\1.norm2.',
    r'^transformer\.layers\.(\d+)\.1\.net\.1\.': r'blocks.\1.mlp.fc1.',
    r'^transformer\.layers\.(\d+)\.1\.net\.3\.': r'blocks.\1.mlp.fc2.',
}
#: heads, and what only training needs. The periods follow from the base of the rotary embedding.
LEFT_OUT = 'mask_token', 'rope_embed.periods', 'head', 'linear_head.', 'fc_norm.', 'pre_logits.', 'local_cls_norm.'
#: the frame's names of positions and prefix tokens, which other frames may lack
OPTIONAL = 'patch_embed.pos_embed', 'prefix.cls_token', 'prefix.reg_token'


def read(state_dict: dict[str, Tensor], model: nn.Module, warm_start: bool = False) -> Translation:
    """Leaves out blocks that are not built, and the final norm if the model has none; resizes the table of positions.
    A checkpoint of a backbone without a final norm leaves that norm untrained.

    A warm start takes all but what the frame has no place for: prefix tokens, positions, and what token mixers leave of
    the projections of attention. Tensors that only the token mixers have keep their initial values.
    """
    tensors, dropped = vit_layout(state_dict)
    dropped += take_out(tensors, *(f'blocks.{i}.' for i in range(model.num_built, model.num_stages)))
    if isinstance(model.norm, nn.Identity):
        dropped += take_out(tensors, 'norm.')
    embed, prefix = model.patch_embed, model.prefix
    if isinstance(embed, DeiTEmbed) and 'pos_embed' in tensors:
        table = tensors['pos_embed']
        side = math.isqrt(table.shape[1]) if table.dim() == 3 else embed.pos_embed.shape[-1]
        table = take(tensors, 'pos_embed', 1, side**2, embed.pos_embed.shape[1])
        tensors['patch_embed.pos_embed'] = table.mT.unflatten(-1, (side, side))
    for name, token in (('cls_token', prefix.cls_token), ('reg_token', prefix.reg_token)):
        if name in tensors and token is not None:
            tensors[f'prefix.{name}'] = tensors.pop(name)
        elif name in tensors and not warm_start and all(type(block.attn) is SelfAttention for block in model.blocks):
            raise CheckpointError(
                f'the weights have {name}, of shape {tuple(tensors[name].shape)}: give the backbone class_token '
                'and registers, or leave them out by warm_start=True beside the checkpoint'
            )
    for i, block in enumerate(model.blocks):
        bias = f'blocks.{i}.attn.qkv.bias'
        if bias in tensors and type(block.attn) is SelfAttention and block.attn.qkv.bias is None:
            if tensors[bias].any():  # They are zero in some files of DINOv3.
                raise CheckpointError(
                    f'the weights have {bias}, and it is not zero: give qkv_bias=True to the backbone, and to a '
                    'token mixer SelfAttention'
                )
            dropped += take_out(tensors, bias)
    if warm_start:
        dropped += _start_attention(tensors, model)
    fresh = []
    if isinstance(model.norm, nn.LayerNorm) and not any(name.startswith('norm.') for name in tensors):
        fresh = ['norm.weight', 'norm.bias']
    fit_tables(tensors, model.state_dict(), ['patch_embed.pos_embed'], _fitted)
    return Translation(tensors, dropped, fresh)


def source_config(state_dict: dict[str, Tensor], model: nn.Module) -> dict:
    """The plain ViT, with the tokens and the table of positions that its weights have. They may be those of a
    ``ViTFrame``."""
    tensors = {name.removeprefix('prefix.'): value for name, value in vit_layout(state_dict)[0].items()}
    # Loading refuses shapes without the size that is looked for.
    sizes = {name: (*value.shape, 0, 0) for name, value in tensors.items()}
    side = None
    if 'pos_embed' in tensors:
        side = math.isqrt(sizes['pos_embed'][1])
    elif 'patch_embed.pos_embed' in tensors:
        side = tensors['patch_embed.pos_embed'].shape[-1:].numel()
    feed_forward = 'swiglu' if 'blocks.0.mlp.fc1_g.weight' in tensors else 'plain'
    if 'blocks.0.mlp.dwconv.weight' in tensors:  # of a frame with this kind of layers
        feed_forward = model.settings['feed_forward']
    patch_size = model.strides[0]
    shared = ('rope', 'mlp_ratio', 'final_norm', 'in_channels', 'out_indices')
    return dict(
        type='ViTFrame',
        arch={key: model.arch[key] for key in ('embed_dim', 'depth', 'num_heads')},
        embedding='deit' if side else 'patches',
        img_size=(side or 1) * patch_size,
        patch_size=patch_size,
        class_token='cls_token' in tensors,
        registers=sizes['reg_token'][1] if 'reg_token' in tensors else 0,
        qkv_bias='blocks.0.attn.qkv.bias' in tensors,
        layer_scale=1.0 if 'blocks.0.ls1.gamma' in tensors else None,
        norm_eps=model.settings['norm_eps'],
        feed_forward=feed_forward,
        **{name: getattr(model, name) for name in shared},
    )


def vit_layout(state_dict: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a plain ViT under the names of timm's ``VisionTransformer``, and the names of those left out.

    Positions of the class token and of registers are added to these tokens. Where DINOv3 has biases, keys have none:
    timm's Eva has biases of queries and values only, and Meta's files have a mask. Names of
    :class:`mmattn.backbones.ViTFrame` stay.
    """
    tensors = renamed(state_dict, RENAMES)
    dropped = take_out(tensors, *LEFT_OUT)

    def is_vector(name: str) -> bool:  # Others stay, and are refused later.
        return name in tensors and tensors[name].dim() == 1

    for name in list(tensors):
        block, _, part = name.rpartition('.attn.')
        bias, of_value = f'{block}.attn.qkv.bias', f'{block}.attn.v_bias'
        if part == 'q_bias' and is_vector(name) and is_vector(of_value):
            query, value = tensors.pop(name), tensors.pop(of_value)
            tensors[bias] = torch.cat((query, torch.zeros_like(query), value))
        elif part == 'qkv.bias_mask' and is_vector(bias):
            dropped += take_out(tensors, name)
            keys = torch.arange(len(tensors[bias])) * 3 // max(len(tensors[bias]), 1) == 1
            tensors[bias] = tensors[bias].masked_fill(keys, 0)
    if 'pos_embed' in tensors:
        _add_positions(tensors)
    return tensors, dropped


def _add_positions(tensors: dict[str, Tensor]) -> None:
    """Move the positions of prefix tokens, which come first in ``pos_embed``, to these tokens.

    The remaining positions are those of a square map. If they are not, the table stays as it is, and is refused later.
    """
    table = tensors['pos_embed']
    if table.dim() != 3:
        return
    count = table.shape[1] - math.isqrt(table.shape[1]) ** 2
    ends = {'cls_token': min(count, 1), 'reg_token': count}
    placed, start = {}, 0
    for name, end in ends.items():
        if name in tensors and start < end:
            placed[name], start = table[:, start:end], end
    registers = tensors.get('reg_token', table)
    other = 'reg_token' in placed and registers.dim() == 3 and registers.shape[1] != placed['reg_token'].shape[1]
    if start == count and not other:
        tensors['pos_embed'] = table[:, count:]
        for name, positions in placed.items():
            if positions.shape == tensors[name].shape:  # others are refused later, or left out
                tensors[name] = tensors[name] + positions


def _start_attention(tensors: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Rearrange the weights of a plain ViT for a warm start; returns the names of those that have no place.

    Raises:
        KeyError: naming a tensor that should be in the state dict.
        CheckpointError: naming a tensor of another shape that has to be rearranged.
    """
    embed = model.patch_embed
    if isinstance(embed, SimpleEmbed):  # a linear layer on patches in another order, between two norms
        dim, p, name = embed.proj.out_features, embed.patch_size, 'patch_embed.proj.weight'
        channels = tensors[name].shape[1:2].numel()
        kernel = take(tensors, name, dim, channels, p, p)
        of_these_images = channels == model.in_channels  # Others are refused later, or were fitted.
        tensors[name] = kernel.permute(0, 2, 3, 1).flatten(1) if of_these_images else kernel
    starts = {
        f'blocks.{i}.attn.': getattr(block.attn, 'warm_start', None)
        for i, block in enumerate(model.blocks)
        if type(block.attn) is not SelfAttention
    }
    for prefix, start in starts.items():
        if start is not None:
            weight = tensors[f'{prefix}qkv.weight']
            tensors.setdefault(f'{prefix}qkv.bias', weight.new_zeros(weight.shape[:1]))
    dropped = start_token_mixers(tensors, starts)
    own = model.state_dict()
    dropped += take_out(tensors, 'pos_embed', 'cls_token', 'reg_token', *(name for name in OPTIONAL if name not in own))
    mixed = '|'.join(str(i) for i, block in enumerate(model.blocks) if type(block.attn) is not SelfAttention)
    optional = rf'norm\.|patch_embed\.(patch_)?norm\.|blocks\.\d+\.mlp\.dwconv\.|blocks\.({mixed or "-"})\.attn\.'
    optional += r'|blocks\.\d+\.attn\.ghost\.'
    for name in own:
        if name not in tensors and not re.match(optional, name):
            raise KeyError(name.removeprefix('prefix.').replace('patch_embed.pos_embed', 'pos_embed'))
    return dropped


def _fitted(table: Tensor, shape: torch.Size) -> Tensor | None:
    """A table of positions (1, C, a, a) -> (1, C, b, b); None if it is not such a table."""
    is_table = table.dim() == 4 and table.shape == (*shape[:2], table.shape[3], table.shape[3])
    return resampled(table, *shape[2:]) if is_table and table.numel() else None
