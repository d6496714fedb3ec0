"""Aggregated attention on the CPU, without weights of pooled tokens in memory: kernel.cpp."""

from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE, CannotServe
from ..library import call, empty_like, operator, rows_of
from .shifted import aggregated_attention_shifted
from .table import PooledBias


def aggregated_attention_cpp(
    query: Tensor, key_value: Tensor, pooled: Tensor, *others: Tensor | PooledBias | float
) -> Tensor:
    """``aggregated_attention_reference`` without dropout, with the softmax in C++, in float32."""
    library.check_takes(query, key_value, pooled, dtypes=HALF_OR_SINGLE)
    if others[-1]:
        raise CannotServe("backend 'cpp' takes no dropout: choose backend 'shifted'")
    return aggregated_attention_shifted(query, key_value, pooled, *others, softmax=_one_softmax)


def _one_softmax(
    query: Tensor, pooled_key: Tensor, pooled_value: Tensor, logits: Tensor, pooled_bias: PooledBias, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """:func:`.shifted.one_softmax` without dropout."""
    h = pooled_bias.by_row.shape[2]
    tokens = (x.unflatten(1, (h, -1)) for x in (pooled_key, pooled_value))
    given = query, *tokens, logits, pooled_bias.by_row, pooled_bias.columns
    near, far = _softmax(*(x.float() for x in given))
    return near, far


def _forward(*given: Tensor) -> list[Tensor]:
    tensors, numbers = _arguments(*given)
    query, logits = tensors[0], tensors[3]
    near, far = empty_like(logits), empty_like(query)
    if far.numel():
        call('aggregated_softmax', *tensors, near, far, numbers)
    return [near, far]


def _backward(grad_near: Tensor, grad_far: Tensor, *given: Tensor) -> list[Tensor]:
    """The gradients of all but the columns."""
    tensors, numbers = _arguments(*given)
    gradients = [x.new_zeros(x.shape) for x in given[:-1]]
    if given[0].numel():
        call(
            'aggregated_softmax_backward', *tensors, grad_near.contiguous(), grad_far.contiguous(), *gradients, numbers
        )
    return gradients


def _check(query: Tensor, key: Tensor, value: Tensor, logits: Tensor, by_row: Tensor, columns: Tensor) -> None:
    fits = query.dim() == logits.dim() == key.dim() == 5 and by_row.dim() == 4 and columns.dim() == 2
    if fits:
        (B, H, _, heads, d), (h, w) = query.shape, key.shape[1:3]
        fits = key.shape == value.shape == (B, h, w, heads, d) and logits.shape[:4] == query.shape[:4] and h * w > 0
        fits = fits and by_row.shape[:3] == (heads, H, h) and columns.numel() > 0
    if not fits:
        given = ', '.join(str(tuple(x.shape)) for x in (query, key, value, logits, by_row, columns))
        raise ValueError(
            'query must be (B, H, W, heads, d), key and value (B, h, w, heads, d), logits (B, H, W, heads, taps), '
            f'by_row (heads, H, h, D) and columns (X, J), not {given}'
        )
    if not columns.is_meta and not 0 <= columns.min() <= columns.max() < by_row.shape[3]:
        raise ValueError(f'columns must be from 0 to {by_row.shape[3] - 1}')


def _check_backward(grad_near: Tensor, grad_far: Tensor, *given: Tensor) -> None:
    _check(*given)
    query, logits = given[0], given[3]
    if grad_near.shape != logits.shape or grad_far.shape != query.shape:
        raise ValueError(
            f'gradients must be as logits and query, {tuple(logits.shape)} and {tuple(query.shape)}, not '
            f'{tuple(grad_near.shape)} and {tuple(grad_far.shape)}'
        )


_inputs = 'Tensor query, Tensor key, Tensor value, Tensor logits, Tensor by_row, Tensor columns'
_softmax_backward = operator(
    f'aggregated_softmax_backward(Tensor grad_near, Tensor grad_far, {_inputs}) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad_near, grad_far, *given: [empty_like(x) for x in given[:-1]],
)
_softmax = operator(
    f'aggregated_softmax({_inputs}) -> Tensor[]',
    _check,
    _forward,
    lambda query, key, value, logits, *_: [empty_like(logits), empty_like(query)],
    lambda *given: (*_softmax_backward(*given), None),
)


def _arguments(
    query: Tensor, key: Tensor, value: Tensor, logits: Tensor, by_row: Tensor, columns: Tensor
) -> tuple[list[Tensor], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    (query, *strides), (key, key_stride), (value, value_stride) = rows_of(query), rows_of(key), rows_of(value)
    numbers = [*query.shape, *key.shape[1:3], logits.shape[4], by_row.shape[3], *columns.shape]
    tensors = [query, key, value, *(x.contiguous() for x in (logits, by_row, columns))]
    return tensors, [*numbers, *strides, key_stride, value_stride]
