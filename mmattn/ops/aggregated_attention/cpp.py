"""Aggregated attention on the CPU, in one pass over the map and without weights in memory: kernel.cpp."""

import torch
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
    table, rows = pooled_bias.table, pooled_bias.rows
    if rows is None:
        rows = torch.arange(table.shape[1] * table.shape[2]).view(table.shape[1:3])
        table = table.flatten(1, 2)
    biases = bias, table, rows, pooled_bias.columns, tokens, token_bias
    given = (x.float() for x in (query, key_value, pooled, F.softplus(temperature), embedding, *biases))
    return _attention(*given).to(key_value.dtype)


def cosine_attention_cpp(
    query: Tensor,
    key_value: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    position_bias: PooledBias,
    dropout_p: float,
) -> Tensor:
    """``cosine_attention`` as aggregated attention without neighbours, whose pooled tokens are all tokens."""
    none = [embedding.new_empty(*shape, 0) for shape in (temperature.shape, embedding.shape, temperature.shape)]
    given = query, key_value.detach(), key_value, temperature, embedding, none[0], position_bias, *none[1:]
    return aggregated_attention_cpp(*given, dropout_p)


def _forward(*given: Tensor) -> Tensor:
    tensors, numbers = _arguments(*given)
    out = empty_like(given[0])
    if out.numel():
        call('aggregated_attention', *tensors, out, numbers)
    return out


def _backward(grad: Tensor, *given: Tensor) -> list[Tensor]:
    """The gradients of all but the places in the table."""
    tensors, numbers = _arguments(*given)
    gradients = [x.new_zeros(x.shape) for i, x in enumerate(given) if i not in PLACES]
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
    table: Tensor,
    rows: Tensor,
    columns: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
) -> None:
    given = query, key_value, pooled, scale, embedding, bias, table, rows, columns, tokens, token_bias
    dims = [x.dim() for x in (query, pooled, bias, table, rows, columns)]
    fits = dims == [5, 6, 2, 3, 2, 2]
    if fits:
        (B, H, W, heads, d), (h, w), taps = query.shape, pooled.shape[1:3], bias.shape[1]
        shapes = (B, H, W, heads, d), (B, H, W, 2, heads, d), (B, h, w, 2, heads, d), (heads,), (heads, d)
        shapes += (heads, taps), (heads, *table.shape[1:]), (H, h), columns.shape, (heads, d, taps), (heads, taps)
        fits = all(x.shape == shape for x, shape in zip(given, shapes)) and h * w * columns.numel() > 0
        fits = fits and _side(taps) ** 2 == taps
    if not fits:
        raise ValueError(
            'query must be (B, H, W, heads, d), key_value (B, H, W, 2, heads, d), pooled (B, h, w, 2, heads, d), scale '
            '(heads), embedding (heads, d), bias and token_bias (heads, k * k), table (heads, R, D), rows (H, h), '
            f'columns (X, J) and tokens (heads, d, k * k), not {", ".join(str(tuple(x.shape)) for x in given)}'
        )
    for name, places, size in (('rows', rows, table.shape[1]), ('columns', columns, table.shape[2])):
        if not places.is_meta and places.numel() and not 0 <= places.min() <= places.max() < size:
            raise ValueError(f'{name} must be from 0 to {size - 1}')


def _check_backward(grad: Tensor, *given: Tensor) -> None:
    _check(*given)
    if grad.shape != given[0].shape:
        raise ValueError(f'grad must be as query, {tuple(given[0].shape)}, not {tuple(grad.shape)}')


PLACES = 7, 8  #: among the arguments: rows and columns
_inputs = (
    'Tensor query, Tensor key_value, Tensor pooled, Tensor scale, Tensor embedding, Tensor bias, Tensor table, '
    'Tensor rows, Tensor columns, Tensor tokens, Tensor token_bias'
)
_attention_backward = operator(
    f'aggregated_attention_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, *given: [empty_like(x) for i, x in enumerate(given) if i not in PLACES],
)


def _gradients(*given: Tensor) -> list[Tensor | None]:
    gradients = list(_attention_backward(*given))
    return [*gradients[: PLACES[0]], None, None, *gradients[PLACES[0] :]]


_attention = operator(
    f'aggregated_attention({_inputs}) -> Tensor', _check, _forward, lambda query, *_: empty_like(query), _gradients
)


def _arguments(
    query: Tensor, key_value: Tensor, pooled: Tensor, scale: Tensor, embedding: Tensor, *others: Tensor
) -> tuple[list[Tensor], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    maps, strides = zip(*map(rows_of, (query, key_value, pooled)))
    bias, table, _, columns = others[:4]
    numbers = [*query.shape, *pooled.shape[1:3], _side(bias.shape[1]), *table.shape[1:], *columns.shape, *strides]
    return [*maps, *(x.contiguous() for x in (scale, embedding, *others))], numbers


def _side(taps: int) -> int:
    """k, or 0 without neighbours."""
    return side(taps) if taps else 0
