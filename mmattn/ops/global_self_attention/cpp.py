"""Axial attention by relative position on the CPU, whose scores stay in the cache: kernel.cpp."""

import sys

from torch import Tensor

from ...arguments import check_whole
from .. import library
from ..library import call, empty_like, operator, rows_of
from .reference import check_lines
from .table import fit_table


def axial_attention_cpp(query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str) -> Tensor:
    """The same sums in C++, whose scores stay in the cache."""
    library.check_takes(query, value)
    reach = len(table) // 2 if beyond == 'mask' else sys.maxsize
    return _sum(query, value, fit_table(table, query.shape[dim], beyond).float(), dim, reach)


def _forward(query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int) -> Tensor:
    maps, numbers = _arguments(query, value, table, dim, reach)
    out = empty_like(value)
    if query.numel() and value.numel():
        call('axial_sum', *maps, out, numbers)
        return out
    return out.zero_()


def _backward(grad: Tensor, query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int) -> list[Tensor]:
    """The gradients of query, value and table."""
    maps, numbers = _arguments(query, value, table, dim, reach)
    gradients = [empty_like(x) for x in maps]
    if query.numel() and value.numel():
        call('axial_sum_backward', *maps, grad.contiguous(), *gradients, numbers)
        return gradients
    return [x.zero_() for x in gradients]


def _check(query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int) -> None:
    check_lines(query, value, table, dim)
    check_whole('reach', reach, least=0)
    if table.shape[0] != 2 * query.shape[dim] - 1:
        raise ValueError(f'table must be ({2 * query.shape[dim] - 1}, {query.shape[-1]}), not {tuple(table.shape)}')


def _check_backward(grad: Tensor, query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int) -> None:
    _check(query, value, table, dim, reach)
    if grad.shape != value.shape:
        raise ValueError(f'grad must be as value, {tuple(value.shape)}, not {tuple(grad.shape)}')


_inputs = 'Tensor query, Tensor value, Tensor table, int dim, int reach'
_sum_backward = operator(
    f'axial_sum_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, *inputs: [empty_like(x) for x in inputs[:3]],
)
_sum = operator(
    f'axial_sum({_inputs}) -> Tensor', _check, _forward, lambda query, value, *_: empty_like(value), _sum_backward
)


def _arguments(query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int) -> tuple[list[Tensor], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    (query, query_stride), (value, value_stride) = rows_of(query), rows_of(value)
    numbers = [*query.shape, value.shape[-1], dim, query_stride, value_stride, reach]
    return [query, value, table.contiguous()], numbers
