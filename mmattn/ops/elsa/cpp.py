"""The sum of the ELSA operator on the CPU, in one pass over the map: kernel.cpp."""

import math

import torch.nn.functional as F
from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE
from ..library import call, empty_like, operator, rows_of
from .reference import check_neighbourhoods, within
from .shifted import by_channel


def elsa_attention_cpp(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """The same sum in one pass over the map, in C++ and float32."""
    library.check_takes(logits, value, dtypes=HALF_OR_SINGLE)
    attention = F.dropout(logits.float().softmax(-1), dropout_p)
    return summed_cpp(attention, value, *by_channel(ghost_mul, ghost_add), dilation)


def summed_cpp(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    """:func:`.shifted.summed` in float32."""
    mul, add = (None if ghost is None else ghost.float().transpose(-1, -2) for ghost in (mul, add))
    return _sum(weights.float(), value.float(), mul, add, dilation).to(value.dtype)


def _forward(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    maps, numbers = _arguments(weights, value, mul, add, dilation)
    out = empty_like(value)
    if out.numel():
        call('neighbourhood_sum', *maps, out, numbers)
    return out


def _backward(
    grad: Tensor, weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> list[Tensor]:
    """The gradients of weights, value, mul and add, of those that are not None."""
    maps, numbers = _arguments(weights, value, mul, add, dilation)
    gradients = [None if x is None else empty_like(x) for x in maps]
    found = [x for x in gradients if x is not None]
    if not value.numel():
        return [x.zero_() for x in found]
    gradients[0].zero_()
    call('neighbourhood_sum_backward', *maps, grad.contiguous(), *gradients, numbers)
    return found


def _check(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> None:
    check_neighbourhoods('weights', weights, value, dilation)
    B, C, taps = value.shape[0], value.shape[3], weights.shape[4]
    if mul is not None and mul.shape not in ((taps, C), (B, taps, C)):
        raise ValueError(f'mul must be {(taps, C)} or {(B, taps, C)}, not {tuple(mul.shape)}')
    if add is not None and add.shape != (taps, C):
        raise ValueError(f'add must be {(taps, C)}, not {tuple(add.shape)}')


def _check_backward(grad: Tensor, weights: Tensor, value: Tensor, *others: Tensor | int | None) -> None:
    _check(weights, value, *others)
    if grad.shape != value.shape:
        raise ValueError(f'grad must be as value, {tuple(value.shape)}, not {tuple(grad.shape)}')


def _gradients(grad: Tensor, *inputs: Tensor | int | None) -> list[Tensor | None]:
    found = iter(_sum_backward(grad, *inputs))
    return [None if x is None else next(found) for x in inputs[:-1]]


_inputs = 'Tensor weights, Tensor value, Tensor? mul, Tensor? add, int dilation'
_sum_backward = operator(
    f'neighbourhood_sum_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, *inputs: [empty_like(x) for x in inputs[:-1] if x is not None],
)
_sum = operator(
    f'neighbourhood_sum({_inputs}) -> Tensor',
    _check,
    _forward,
    lambda weights, value, *_: empty_like(value),
    _gradients,
)


def _arguments(
    weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> tuple[list[Tensor | None], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    dilation = within(dilation, value)
    value, stride = rows_of(value)
    weights, mul, add = (None if x is None else x.contiguous() for x in (weights, mul, add))
    mul_stride = 0 if mul is None or mul.dim() == 2 else mul.stride(0)
    *shape, taps = weights.shape
    d = value.shape[3] // shape[3]
    return [weights, value, mul, add], [*shape, d, math.isqrt(taps), dilation, stride, mul_stride]
