"""The sum of the ELSA operator on the CPU in one pass over the map, by the C++ code of neighbourhood.cpp.

setup.py compiles it where mmattn is installed. Without a compiler there is no library, and other paths take its place.
"""

import ctypes
import math
import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_FILE = Path(__file__).with_name('_neighbourhood' + sysconfig.get_config_var('EXT_SUFFIX'))
_C = ctypes.CDLL(str(_FILE)) if _FILE.is_file() else None
HAS_LIBRARY = _C is not None

# An operator of torch's, so that profiles and counts of operations see it.
_library = torch.library.Library('mmattn', 'FRAGMENT')
_library.define('neighbourhood_sum(Tensor weights, Tensor value, Tensor? mul, Tensor? add, int dilation) -> Tensor')


def neighbourhood_sum_cpu(
    weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> Tensor:
    """``sum_j (weights[..., j] * mul[j] + add[j]) * shift_j(value)`` in float32.

    Args:
        weights: (B, H, W, heads, k * k).
        value: (B, H, W, C).
        mul: (k * k, C), or (B, k * k, C) for each image; None means ones.
        add: (k * k, C); None means zeros.
        dilation: distance of neighbours, in pixels.

    Returns:
        (B, H, W, C).
    """
    return _Sum.apply(weights, value, mul, add, dilation)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
        ctx.save_for_backward(weights, value, mul, add)
        ctx.dilation = dilation
        return torch.ops.mmattn.neighbourhood_sum(weights, value, mul, add, dilation)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        maps, shape = _arguments(*ctx.saved_tensors, ctx.dilation)
        grad_value = torch.empty_like(maps[1], memory_format=torch.contiguous_format)
        grad_weights, grad_mul, grad_add = (None if x is None else torch.zeros_like(x) for x in (maps[0], *maps[2:]))
        gradients = grad_weights, grad_value, grad_mul, grad_add
        _call('neighbourhood_sum_backward', (*maps, grad.contiguous(), *gradients), shape)
        return *gradients, None


def _forward(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    maps, shape = _arguments(weights, value, mul, add, dilation)
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    _call('neighbourhood_sum', (*maps, out), shape)
    return out


_library.impl('neighbourhood_sum', _forward, 'CPU')


def _arguments(
    weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> tuple[list[Tensor | None], tuple[int, ...]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    B, H, W, heads, taps = weights.shape
    stride = value.stride(2)
    if value.stride() != (H * W * stride, W * stride, stride, 1):  # not even a part of a fused projection
        value, stride = value.contiguous(), value.shape[3]
    weights, mul, add = (None if x is None else x.contiguous() for x in (weights, mul, add))
    mul_stride = 0 if mul is None or mul.dim() == 2 else mul.stride(0)
    shape = B, H, W, heads, value.shape[3] // heads, math.isqrt(taps), dilation, stride, mul_stride
    return [weights, value, mul, add], shape


def _call(name: str, tensors: tuple[Tensor | None, ...], shape: tuple[int, ...]) -> None:
    pointers = [ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors]
    getattr(_C, name)(*pointers, *map(ctypes.c_int64, shape), ctypes.c_int(torch.get_num_threads()))
