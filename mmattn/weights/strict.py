import logging
import math
import re
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor

from .checkpoint import CheckpointError, read_checkpoint

if TYPE_CHECKING:
    from ..backbones.base import Backbone

#: names that give another model away, for the guess in an error
FOREIGN_LAYOUTS = {
    'an ELSA-Swin': r'layers\.\d+\.blocks\.\d+\.attn\.ghost_head',
    "a Swin Transformer in Microsoft's or timm's layout": r'layers\.\d+\.blocks\.\d+\.attn\.relative_position',
    "a Swin Transformer in MMDetection's layout": r'stages\.\d+\.blocks\.\d+\.attn\.w_msa\.',
    'a Shunted Transformer': r'block\d\.\d+\.attn\.(sr1|local_conv)',
    'a Pyramid Vision Transformer': r'block\d\.\d+\.attn\.kv\.',
    'a mean-shift (MSF) ViT': r'transformer\.layers\.\d+\.0\.to_qkvp\.',
    'a ViT or DeiT': r'blocks\.\d+\.attn\.qkv\.|layers\.\d+\.attn\.attn\.in_proj_weight',
    'a ResNet': r'layer\d\.\d+\.conv\d\.',
}


def load_pretrained(backbone: 'Backbone', checkpoint: str, prefix: str | None = None, strict: bool = True,
                    map_location: str = 'cpu') -> None:
    """Fill a backbone from a released checkpoint, as ``init_cfg=dict(type='Pretrained', checkpoint=...)`` asks.

    Args:
        backbone: the model to fill, in place.
        checkpoint: see :func:`read_checkpoint`.
        prefix: see :func:`read_checkpoint`.
        strict: whether a tensor that is missing, of another shape or not used is an error.
        map_location: accepted for the sake of MMEngine's configs; tensors are read on the CPU.

    Raises:
        CheckpointError: if the file cannot be read, or does not fit the backbone to the last tensor.
    """
    state_dict, source = read_checkpoint(checkpoint, prefix)
    print_log(f'{type(backbone).__name__}: loading {checkpoint} ({source})', logger='current')
    try:
        backbone.load_state_dict(state_dict, strict=strict)
    except CheckpointError as error:
        raise CheckpointError(f'{checkpoint}: {error}') from None


def fit_state_dict(backbone: 'Backbone', state_dict: dict[str, Tensor], prefix: str, strict: bool) -> None:
    """Turn the backbone's part of a state dict, in place, into exactly its own names and shapes.

    Args:
        backbone: the model that is about to be filled.
        state_dict: tensors by name; those that begin with ``prefix`` are the backbone's.
        prefix: the name of the backbone in the model at hand, with a dot; '' if it stands alone.
        strict: whether a tensor that is missing, of another shape or not used is an error.

    Raises:
        CheckpointError: naming these tensors and the likely cause.
    """
    given = {name.removeprefix(prefix): state_dict.pop(name) for name in list(state_dict) if name.startswith(prefix)}
    given = backbone.released_names(given)
    own = dict(backbone.state_dict())

    dropped = [name for name in given if name not in own and backbone.release_only.match(name)]
    kept = [name for name in own if name not in given and backbone.backbone_only.match(name)]
    if any(backbone.backbone_only.match(name) for name in given):
        kept = []  # a release that has some of these has all of them
    tensors = {name: value for name, value in given.items() if name not in dropped}
    for name, value in tensors.items():
        if name in own and value.shape != own[name].shape and backbone.resizable.match(name):
            tensors[name] = _resize_table(name, value, own[name].shape)

    if strict:
        missing = [name for name in own if name not in tensors and name not in kept
                   and not name.endswith('num_batches_tracked')]
        misshapen = [f'{name} {tuple(value.shape)} instead of {tuple(own[name].shape)}'
                     for name, value in tensors.items() if name in own and value.shape != own[name].shape]
        unused = [name for name in tensors if name not in own]
        if missing or misshapen or unused:
            lines = [f'{len(names)} {what}: {_some(names)}' for what, names in
                     (('missing', missing), ('of another shape', misshapen), ('not used', unused)) if names]
            raise CheckpointError(f'the weights do not fit {type(backbone).__name__}: {_guess(backbone, given, prefix)}.'
                                  f' Tensors ' + '; '.join(lines))
        for what, names in (('has no counterpart here', dropped), ('kept as initialised', kept)):
            if names:
                print_log(f'{type(backbone).__name__}: {what}: {", ".join(names)}', logger='current')
    tensors.update((name, own[name]) for name in kept)
    state_dict.update((prefix + name, value) for name, value in tensors.items())


def _resize_table(name: str, table: Tensor, shape: torch.Size) -> Tensor:
    """Stretch (heads, a * a) relative positions to (heads, b * b), bicubic."""
    old, new = math.isqrt(table.shape[-1]), math.isqrt(shape[-1])
    if table.dim() != 2 or len(shape) != 2 or table.shape[0] != shape[0] or old**2 != table.shape[1]:
        return table
    print_log(f'{name} interpolated from {old} x {old} to {new} x {new}', logger='current', level=logging.INFO)
    grid = table.float().view(1, -1, old, old)
    return F.interpolate(grid, (new, new), mode='bicubic', align_corners=False).view(shape).to(table.dtype)


def _some(names: list[str], count: int = 6) -> str:
    return ', '.join(names[:count]) + (f' and {len(names) - count} more' if len(names) > count else '')


def _guess(backbone: 'Backbone', given: dict[str, Tensor], prefix: str) -> str:
    """The likely cause of a misfit."""
    if not given:
        return (f'the checkpoint has no tensor under "{prefix}"; ImageNet weights are given by '
                f'init_cfg=dict(type="Pretrained", checkpoint=...) of the backbone, not by load_from')
    shapes = {name: value.shape for name, value in given.items() if not backbone.release_only.match(name)}
    for arch in backbone.arch_zoo:
        with torch.device('meta'):
            layout = {name: value.shape for name, value in type(backbone)(arch=arch).state_dict().items()
                      if not backbone.backbone_only.match(name)}
        if layout.items() <= shapes.items():
            return f'they are those of {type(backbone).__name__}(arch={arch!r}) with its default arguments'
    for model, pattern in FOREIGN_LAYOUTS.items():
        if any(re.match(pattern, name) for name in given):
            own = any(re.match(pattern, name) for name in backbone.state_dict())
            return 'they are of another architecture of the same family' if own else f'they look like {model}'
    return 'they look like another model'
