"""Aggregated attention on the CPU, in one pass over the map and without weights in memory: kernel.cpp."""

import torch.nn.functional as F
from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE, CannotServe
from ..elsa.reference import side
from ..library import call, empty_like, operator, rows_of
from .table import PooledBias


def aggregated_attention_cpp(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    tokens: Tensor,
    token_bias: Tensor,
    dropout_p: float,
) -> Tensor:
    """``aggregated_attention_reference`` without dropout, in float32."""
    library.check_takes(query, key_value, pooled, dtypes=HALF_OR_SINGLE)
    if dropout_p:
        raise CannotServe("backend 'cpp' takes no dropout: choose backend 'shifted'")
    biases = bias, pooled_bias.by_row, pooled_bias.columns, tokens, token_bias
    given = (x.float() for x in (query, key_value, pooled, F.softplus(temperature), embedding, *biases))
    return _attention(*given).to(key_value.dtype)


def _forward(*given: Tensor) -> Tensor:
    tensors, numbers = _arguments(*given)
    out = empty_like(given[0])
    if out.numel():
        call('aggregated_attention', *tensors, out, numbers)
    return out


def _backward(grad: Tensor, *given: Tensor) -> list[Tensor]:
    """The gradients of all but the columns."""
    tensors, numbers = _arguments(*given)
    gradients = [x.new_zeros(x.shape) for i, x in enumerate(given) if i != COLUMNS]
    if given[0].numel():
        call('aggregated_attention_backward', *tensors, grad.contiguous(), *gradients, numbers)
    return gradients


def _check(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    scale: Tensor,
    embedding: Tensor,
    bias: Tensor,
    by_row: Tensor,
    columns: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
) -> None:
    given = query, key_value, pooled, scale, embedding, bias, by_row, columns, tokens, token_bias
    fits = query.dim() == 5 and pooled.dim() == 6 and bias.dim() == 2 and by_row.dim() == 4 and columns.dim() == 2
    if fits:
        (B, H, W, heads, d), (h, w), taps = query.shape, pooled.shape[1:3], bias.shape[1]
        shapes = (B, H, W, heads, d), (B, H, W, 2, heads, d), (B, h, w, 2, heads, d), (heads,), (heads, d)
        shapes += (heads, taps), (heads, H, h, by_row.shape[3]), columns.shape, (heads, d, taps), (heads, taps)
        fits = all(x.shape == shape for x, shape in zip(given, shapes)) and h * w * columns.numel() > 0
        fits = fits and side(taps) ** 2 == taps
    if not fits:
        raise ValueError(
            'query must be (B, H, W, heads, d), key_value (B, H, W, 2, heads, d), pooled (B, h, w, 2, heads, d), scale '
            '(heads), embedding (heads, d), bias and token_bias (heads, k * k), by_row (heads, H, h, D), columns (X, '
            f'J) and tokens (heads, d, k * k), not {", ".join(str(tuple(x.shape)) for x in given)}'
        )
    if not columns.is_meta and not 0 <= columns.min() <= columns.max() < by_row.shape[3]:
        raise ValueError(f'columns must be from 0 to {by_row.shape[3] - 1}')


def _check_backward(grad: Tensor, *given: Tensor) -> None:
    _check(*given)
    if grad.shape != given[0].shape:
        raise ValueError(f'grad must be as query, {tuple(given[0].shape)}, not {tuple(grad.shape)}')


COLUMNS = 7  #: their place among the arguments
_inputs = (
    'Tensor query, Tensor key_value, Tensor pooled, Tensor scale, Tensor embedding, Tensor bias, Tensor by_row, '
    'Tensor columns, Tensor tokens, Tensor token_bias'
)
_attention_backward = operator(
    f'aggregated_attention_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, *given: [empty_like(x) for i, x in enumerate(given) if i != COLUMNS],
)


def _gradients(*given: Tensor) -> list[Tensor | None]:
    gradients = list(_attention_backward(*given))
    gradients.insert(COLUMNS, None)
    return gradients


_attention = operator(
    f'aggregated_attention({_inputs}) -> Tensor', _check, _forward, lambda query, *_: empty_like(query), _gradients
)


def _arguments(
    query: Tensor, key_value: Tensor, pooled: Tensor, scale: Tensor, embedding: Tensor, *others: Tensor
) -> tuple[list[Tensor], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    maps, strides = zip(*map(rows_of, (query, key_value, pooled)))
    bias, by_row, columns = others[:3]
    numbers = [*query.shape, *pooled.shape[1:3], side(bias.shape[1]), by_row.shape[3], *columns.shape, *strides]
    return [*maps, *(x.contiguous() for x in (scale, embedding, *others))], numbers
