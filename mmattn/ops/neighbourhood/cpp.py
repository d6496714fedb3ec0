"""Neighbourhood attention on the CPU, without weights in memory: kernel.cpp."""

import torch.nn.functional as F
from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE
from ..elsa.reference import within
from ..library import call, empty_like, operator, rows_of
from .reference import beyond_of, check_attention


def neighbourhood_attention_cpp(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    beyond: Tensor | None,
    kernel_size: int,
    dilation: int,
    dropout_p: float,
) -> Tensor:
    """The same in C++, in float32, with the weights of one row of pixels in memory."""
    if dropout_p:
        raise ValueError(f"backend 'cpp' needs dropout_p=0, not {dropout_p}: choose backend 'reference'")
    library.check_takes(query, key, value, dtypes=HALF_OR_SINGLE)
    tensors = [None if x is None else x.float() for x in (query, key, value, bias, beyond)]
    return _attend(*tensors, kernel_size, dilation).to(value.dtype)


def continued(x: Tensor, beyond: Tensor | None, height: int, width: int) -> Tensor:
    """A map (B, H, W, ...), continued at the bottom and the right by a pixel (...); None is zeros."""
    H, W = x.shape[1:3]
    x = F.pad(x, (*[0] * 2 * (x.dim() - 3), 0, width - W, 0, height - H))
    if beyond is not None:
        x[:, H:] = beyond
        x[:, :H, W:] = beyond
    return x


def _forward(query: Tensor, *others: Tensor | int | None) -> Tensor:
    maps, bias, numbers = _arguments(query, *others)
    out = empty_like(query)
    if out.numel():
        call('neighbourhood_attention', *maps, bias, out, numbers)
    return out


def _backward(grad: Tensor, query: Tensor, *others: Tensor | int | None) -> list[Tensor]:
    """The gradients of query, key, value, bias and beyond, of those that are not None."""
    beyond = others[3]
    maps, bias, numbers = _arguments(query, *others)
    gradients = [x.new_zeros(x.shape) for x in maps]
    grad_bias = None if bias is None else bias.new_zeros(bias.shape)
    if query.numel():
        call('neighbourhood_attention_backward', *maps, bias, grad.contiguous(), *gradients, grad_bias, numbers)
    H, W = query.shape[1:3]
    inside = [x[:, :H, :W].contiguous() for x in gradients]
    found = inside if bias is None else [*inside, grad_bias]
    if beyond is None:
        return found
    grad_beyond = beyond.new_zeros(beyond.shape)
    for total, whole in zip(grad_beyond, gradients[1:]):
        total += whole[:, H:].sum((0, 1, 2)) + whole[:, :H, W:].sum((0, 1, 2))
    return [*found, grad_beyond]


def _check_backward(grad: Tensor, query: Tensor, *others: Tensor | int | None) -> None:
    check_attention(query, *others)
    if grad.shape != query.shape:
        raise ValueError(f'grad must be as query, {tuple(query.shape)}, not {tuple(grad.shape)}')


def _gradients(grad: Tensor, *inputs: Tensor | int | None) -> list[Tensor | None]:
    found = iter(_attend_backward(grad, *inputs))
    return [None if x is None else next(found) for x in inputs[:5]]


_inputs = 'Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? beyond, int kernel_size, int dilation'
_attend_backward = operator(
    f'neighbourhood_attention_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, *inputs: [empty_like(x) for x in inputs[:5] if x is not None],
)
_attend = operator(
    f'neighbourhood_attention({_inputs}) -> Tensor',
    check_attention,
    _forward,
    lambda query, *_: empty_like(query),
    _gradients,
)


def _arguments(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, beyond: Tensor | None, k: int, dilation: int
) -> tuple[list[Tensor], Tensor | None, list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    B, H, W, heads, d = query.shape
    dilation = within(dilation, query)
    height, width = max(H, k * dilation), max(W, k * dilation)
    if (height, width) != (H, W):
        key, value = (continued(x, pixel, height, width) for x, pixel in zip((key, value), beyond_of(beyond)))
    (query, *strides), (key, key_stride), (value, value_stride) = rows_of(query), rows_of(key), rows_of(value)
    numbers = [B, H, W, heads, d, height, width, k, dilation, *strides, key_stride, value_stride]
    return [query, key, value], None if bias is None else bias.contiguous(), numbers
