"""Weights under autocast to half precision on a GPU, where every layer would launch kernels to convert its own."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from ..ops.backend import autocast_dtype, has_hooks, launches_casts
from ..ops.cast import cast
from .token_conv import PatchConv2d, TokenConv2d

Layer = TypeVar('Layer', bound=nn.Module)
#: Others, such as shards and quantised ones, are left to their layers.
TENSORS: tuple[type[Tensor], ...] = (Tensor, nn.Parameter)


def cast_once(module: Layer, x: Tensor) -> tuple[Layer, Tensor]:
    """A module that computes what ``module`` does, and its input, so that autocast launches fewer conversions.

    Under autocast to half precision on a GPU, x is converted for all layers that read it, and the module is a copy for
    one forward pass: the weights of its linear layers and convolutions of tokens are converted by two launches
    together, and so are their gradients. Layers of other types or with hooks are those of ``module``. Otherwise, and in
    graphs, both are what they were.

    Args:
        x: what the layers of the module read.
    """
    if not launches_casts(x):
        return module, x
    dtype = autocast_dtype(x)
    layers = {name: layer for name, layer in vars(module)['_modules'].items() if _is_served(layer, x)}
    tensors = {}
    for kind in ('weight', 'bias'):  # Weights come first, and so are aligned.
        for name, layer in layers.items():
            if (tensor := getattr(layer, kind)) is not None:
                tensors[name, kind] = tensor
    attributes: dict[str, dict[str, Tensor]] = {name: {} for name in layers}
    for trained in (True, False):
        group = [(place, tensor) for place, tensor in tensors.items() if tensor.requires_grad == trained]
        if group:
            for ((name, kind), _), converted in zip(group, cast([tensor for _, tensor in group], dtype)):
                attributes[name][kind] = converted
    copies = {name: _copy(layer, attributes[name]) for name, layer in layers.items()}
    return _copy(module, copies), x.to(dtype)


def is_plain(module: nn.Module | None, *types: type[nn.Module]) -> bool:
    """Whether a module is exactly of one of these types, and calls nothing but its own ``forward``."""
    return type(module) in types and not has_hooks(module)


def _is_served(layer: nn.Module, x: Tensor) -> bool:
    kind = type(layer)
    if not (kind in (nn.Linear, TokenConv2d) or issubclass(kind, PatchConv2d)) or not is_plain(layer, kind):
        return False
    weight = layer.weight
    return type(weight) in TENSORS and weight.dtype == torch.float32 and weight.device == x.device


def _copy(module: Layer, attributes: dict[str, object]) -> Layer:
    """A module that shares everything with another, but for some attributes."""
    copy = object.__new__(type(module))
    vars(copy).update(vars(module), **attributes)
    return copy
