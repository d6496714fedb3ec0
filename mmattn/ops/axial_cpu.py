"""Axial attention by relative position on the CPU, whose scores stay in the cache: csrc/axial.cpp."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .library import call, empty_like, operator, rows_of


def axial_attention_cpu(query: Tensor, value: Tensor, table: Tensor, dim: int) -> Tensor:
    """``sum_j (query[i] . table[j - i + A - 1]) * value[j]`` in float32, along lines of A pixels.

    Args:
        query: (B, H, W, heads, k).
        value: (B, H, W, heads, v).
        table: (2A - 1, k).
        dim: 1 for lines that are columns, 2 for rows.

    Returns:
        (B, H, W, heads, v).
    """
    return _AxialSum.apply(query, value, table, dim)


class _AxialSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, value: Tensor, table: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(query, value, table)
        ctx.dim = dim
        return torch.ops.mmattn.axial_sum(query, value, table, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *torch.ops.mmattn.axial_sum_backward(grad, *ctx.saved_tensors, ctx.dim), None


def _forward(query: Tensor, value: Tensor, table: Tensor, dim: int) -> Tensor:
    maps, numbers = _arguments(query, value, table, dim)
    out = empty_like(value)
    call('axial_sum', *maps, out, numbers)
    return out


def _backward(grad: Tensor, query: Tensor, value: Tensor, table: Tensor, dim: int) -> list[Tensor]:
    """The gradients of query, value and table."""
    maps, numbers = _arguments(query, value, table, dim)
    gradients = [empty_like(x) for x in maps]
    call('axial_sum_backward', *maps, grad.contiguous(), *gradients, numbers)
    return gradients


_inputs = 'Tensor query, Tensor value, Tensor table, int dim'
operator(f'axial_sum({_inputs}) -> Tensor', _forward, lambda query, value, *_: empty_like(value))
operator(
    f'axial_sum_backward(Tensor grad, {_inputs}) -> Tensor[]',
    _backward,
    lambda grad, *inputs: [empty_like(x) for x in inputs[:-1]],
)


def _arguments(query: Tensor, value: Tensor, table: Tensor, dim: int) -> tuple[list[Tensor], list[int]]:
    """The tensors as the library takes them, and the numbers that describe them."""
    (query, query_stride), (value, value_stride) = rows_of(query), rows_of(value)
    numbers = [*query.shape, value.shape[-1], dim, query_stride, value_stride]
    return [query, value, table.contiguous()], numbers
