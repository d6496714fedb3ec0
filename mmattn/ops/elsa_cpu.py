"""The sum of the ELSA operator on the CPU in one pass over the map: csrc/neighbourhood.cpp."""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .library import OPERATORS, call, rows_of


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
        maps, numbers = _arguments(*ctx.saved_tensors, ctx.dilation)
        grad_weights = torch.zeros_like(maps[0])
        others = (None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in maps[1:])
        gradients = grad_weights, *others
        call('neighbourhood_sum_backward', *maps, grad.contiguous(), *gradients, numbers)
        return *gradients, None


def _forward(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    maps, numbers = _arguments(weights, value, mul, add, dilation)
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    call('neighbourhood_sum', *maps, out, numbers)
    return out


OPERATORS.define('neighbourhood_sum(Tensor weights, Tensor value, Tensor? mul, Tensor? add, int dilation) -> Tensor')
OPERATORS.impl('neighbourhood_sum', _forward, 'CPU')


def _arguments(
    weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> tuple[list[Tensor | None], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    value, stride = rows_of(value)
    weights, mul, add = (None if x is None else x.contiguous() for x in (weights, mul, add))
    mul_stride = 0 if mul is None or mul.dim() == 2 else mul.stride(0)
    *shape, taps = weights.shape
    d = value.shape[3] // shape[3]
    return [weights, value, mul, add], [*shape, d, math.isqrt(taps), dilation, stride, mul_stride]
