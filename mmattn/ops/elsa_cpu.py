"""The sum of the ELSA operator on the CPU in one pass over the map: csrc/neighbourhood.cpp."""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .library import call, empty_like, operator, rows_of


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
        inputs = ctx.saved_tensors
        gradients = iter(torch.ops.mmattn.neighbourhood_sum_backward(grad, *inputs, ctx.dilation))
        return *(None if x is None else next(gradients) for x in inputs), None


def _forward(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    maps, numbers = _arguments(weights, value, mul, add, dilation)
    out = empty_like(value)
    call('neighbourhood_sum', *maps, out, numbers)
    return out


def _backward(
    grad: Tensor, weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> list[Tensor]:
    """The gradients of weights, value, mul and add, of those that are not None."""
    maps, numbers = _arguments(weights, value, mul, add, dilation)
    gradients = [None if x is None else empty_like(x) for x in maps]
    gradients[0].zero_()
    call('neighbourhood_sum_backward', *maps, grad.contiguous(), *gradients, numbers)
    return [x for x in gradients if x is not None]


_inputs = 'Tensor weights, Tensor value, Tensor? mul, Tensor? add, int dilation'
operator(f'neighbourhood_sum({_inputs}) -> Tensor', _forward, lambda weights, value, *_: empty_like(value))
operator(
    f'neighbourhood_sum_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _backward,
    lambda grad, *inputs: [empty_like(x) for x in inputs[:-1] if x is not None],
)


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
