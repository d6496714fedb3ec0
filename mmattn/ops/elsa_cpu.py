"""The sum of the ELSA operator on the CPU in one pass over the map: csrc/neighbourhood.cpp."""

import math

from torch import Tensor

from ..arguments import check_whole
from .library import call, empty_like, operator, rows_of
from .tracing import is_tracing


def check_neighbourhoods(name: str, weights: Tensor, value: Tensor, dilation: int) -> None:
    """Check what a sum over neighbourhoods takes.

    Args:
        name: of the weights, in messages.
        weights: (B, H, W, heads, k * k), k odd.
        value: (B, H, W, C), C divisible by heads.
        dilation: distance of neighbours, in pixels.

    Raises:
        ValueError: if they do not fit each other.
    """
    if weights.dim() != 5 or value.dim() != 4 or weights.shape[:3] != value.shape[:3]:
        raise ValueError(
            f'{name} must be (B, H, W, heads, k * k) and value (B, H, W, C) of the same B, H and W, '
            f'not {tuple(weights.shape)} and {tuple(value.shape)}'
        )
    heads, taps = weights.shape[-2:]
    C = value.shape[-1]
    k = math.isqrt(taps)
    if k * k != taps or k % 2 == 0:
        raise ValueError(f'{name} must hold k * k neighbours with odd k, not {taps}')
    if not C or not heads or C % heads:
        raise ValueError(f'the {C} channels of value do not divide into {heads} heads')
    check_whole('dilation', dilation)


def within(dilation: int, value: Tensor) -> int:
    """The dilation, at most the longer side of a map (B, H, W, C): from there on, all other neighbours are outside."""
    return dilation if is_tracing() else min(dilation, max(*value.shape[1:3], 1))


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
    return _sum(weights, value, mul, add, dilation)


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
