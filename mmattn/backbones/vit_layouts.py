"""The names that the weights of plain ViTs have in timm and in Meta's files of DINOv2 and DINOv3."""

import math
import re

import torch
from torch import Tensor

from ..weights import take_out

#: parts of names in timm's Eva, which DINOv3 is, and in Meta's files -> in timm's VisionTransformer. DeiT's token of
#: distillation is a register.
RENAMES = {
    r'^(storage_tokens|register_tokens|dist_token)$': 'reg_token',
    r'^(blocks\.\d+)\.gamma_(\d)$': r'\1.ls\2.gamma',
    r'^(blocks\.\d+\.mlp)\.w1\.': r'\1.fc1_g.',
    r'^(blocks\.\d+\.mlp)\.w2\.': r'\1.fc1_x.',
    r'^(blocks\.\d+\.mlp)\.w3\.': r'\1.fc2.',
}
#: heads, and what only training needs. The periods follow from the base of the rotary embedding.
LEFT_OUT = 'mask_token', 'rope_embed.periods', 'head', 'fc_norm.', 'pre_logits.', 'local_cls_norm.'


def vit_layout(state_dict: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a plain ViT under the names of timm's ``VisionTransformer``, and the names of those left out.

    Positions of the class token and of registers are added to these tokens. Where DINOv3 has biases, keys have none:
    timm's Eva has biases of queries and values only, and Meta's files have a mask. Names of
    :class:`mmattn.backbones.ViTFrame` stay.
    """
    tensors = {}
    for name, value in state_dict.items():
        for pattern, new in RENAMES.items():
            name = re.sub(pattern, new, name)
        tensors[name] = value
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
