"""GSA's axial sums on a GPU. No scores are in memory, and maps are read where they are.

A program works on ``BLOCK`` positions of a line of one head, and goes through the positions of the line. Sums are in
float32, whatever the dtype of the maps.

In memory, maps (B, H, W, heads, k) are rows of k numbers. Neighbours on a line are ``step`` rows apart, and the first
positions of neighbouring lines ``other_step`` rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..derivatives import once

#: positions of a program, for 32 channels a head
BLOCK = 32
#: parts of the lines whose sums for the table's gradient are in memory
PARTS = 512


def axial_attention_triton(query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int | None) -> Tensor:
    """``axial_attention_reference`` without keys and softmax, for a table (2l - 1, k) that fits lines of length l, and
    pixels at most ``reach`` apart; None: all."""
    return _AxialSum.apply(query.contiguous(), value.contiguous(), table.contiguous(), dim, reach)


class _AxialSum(torch.autograd.Function):
    """``sum_j (query[i] . table[j - i + l - 1]) value[j]`` along dimension 1 or 2 of contiguous maps."""

    @staticmethod
    def forward(ctx, query: Tensor, value: Tensor, table: Tensor, *numbers: int | None) -> Tensor:
        ctx.save_for_backward(query, value, table)
        ctx.numbers = dim, reach = numbers
        out = torch.empty_like(value)
        grid, constants = _constants(query, value, dim)
        _forward[grid](query, value, table, out, **constants, **_near(reach))
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(grad.contiguous(), *ctx.saved_tensors, *ctx.numbers), None, None


@once
def _gradients(
    grad: Tensor, query: Tensor, value: Tensor, table: Tensor, dim: int, reach: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, value and table."""
    grad_query, grad_value = torch.empty_like(query), torch.empty_like(value)
    (lines, _), constants = grid, constants = _constants(query, value, dim)
    _backward[grid](query, value, table, grad, grad_query, grad_value, **constants, **_near(reach))
    share = max(4, triton.cdiv(lines, PARTS))
    parts = triton.cdiv(lines, share)
    sums = table.new_empty(parts, *table.shape, dtype=torch.float32)
    grid = parts, triton.cdiv(len(table), constants['BLOCK'])
    _backward_table[grid](query, value, grad, sums, lines, share, **constants)
    return grad_query, grad_value, sums.sum(0).to(table.dtype)


def _near(reach: int | None) -> dict:
    """The arguments of the kernels that compare distances, if they must."""
    return dict(reach=reach or 0, HAS_REACH=reach is not None)


def _constants(query: Tensor, value: Tensor, dim: int) -> tuple[tuple[int, int], dict]:
    """Grid and arguments of the kernels."""
    B, _, _, heads, K = query.shape
    V = value.shape[-1]
    length, others = query.shape[dim], query.shape[3 - dim]
    block_k, block_v = (max(16, triton.next_power_of_2(width)) for width in (K, V))
    block = min(triton.next_power_of_2(length), max(16, 32 * BLOCK // max(block_k, block_v)))
    steps = (others * heads, heads) if dim == 1 else (heads, length * heads)
    constants = dict(length=length, others=others, heads=heads, step=steps[0], other_step=steps[1], K=K, V=V)
    constants.update(BLOCK=block, BLOCK_K=block_k, BLOCK_V=block_v)
    return (B * others * heads, triton.cdiv(length, block)), constants


@triton.jit
def _first_row(line, length, others, heads, other_step):
    """The row of the first position of a line, of all lines of all samples and heads."""
    other = line // heads
    sample = (other // others).to(tl.int64)
    return sample * others * length * heads + (other % others).to(tl.int64) * other_step + line % heads


@triton.jit
def _forward(
    query,
    value,
    table,
    out,
    length,
    others,
    heads,
    step,
    other_step,
    reach,
    HAS_REACH: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    first = _first_row(tl.program_id(0), length, others, heads, other_step)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    of_query = (i < length)[:, None] & (k < K)[None, :]
    rows = (first + i.to(tl.int64) * step)[:, None]
    q = tl.load(query + rows * K + k[None, :], of_query, 0.0).to(tl.float32)
    total = tl.zeros((BLOCK, BLOCK_V), tl.float32)
    row = first
    for j in range(length):
        r = tl.load(table + (length - 1 + j - i)[:, None] * K + k[None, :], of_query, 0.0).to(tl.float32)
        neighbour = tl.load(value + row * V + v, v < V, 0.0).to(tl.float32)[None, :]
        if HAS_REACH:  # zero times infinity is NaN
            neighbour = tl.where((tl.abs(j - i) <= reach)[:, None], neighbour, 0.0)
        total += tl.sum(q * r, 1)[:, None] * neighbour
        row += step
    tl.store(out + rows * V + v[None, :], total, (i < length)[:, None] & (v < V)[None, :])


@triton.jit
def _backward(
    query,
    value,
    table,
    grad,
    grad_query,
    grad_value,
    length,
    others,
    heads,
    step,
    other_step,
    reach,
    HAS_REACH: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    first = _first_row(tl.program_id(0), length, others, heads, other_step)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    of_query, of_value = ((i < length)[:, None] & (k < K)[None, :]), ((i < length)[:, None] & (v < V)[None, :])
    rows = (first + i.to(tl.int64) * step)[:, None]
    g = tl.load(grad + rows * V + v[None, :], of_value, 0.0).to(tl.float32)
    total_query = tl.zeros((BLOCK, BLOCK_K), tl.float32)
    total_value = tl.zeros((BLOCK, BLOCK_V), tl.float32)
    row = first
    for j in range(length):
        # The position as query: it received a value from j.
        r = tl.load(table + (length - 1 + j - i)[:, None] * K + k[None, :], of_query, 0.0).to(tl.float32)
        neighbour = tl.load(value + row * V + v, v < V, 0.0).to(tl.float32)[None, :]
        if HAS_REACH:
            near = (tl.abs(j - i) <= reach)[:, None]
            neighbour = tl.where(near, neighbour, 0.0)
        total_query += tl.sum(g * neighbour, 1)[:, None] * r
        # The position as neighbour of the query j.
        r = tl.load(table + (length - 1 + i - j)[:, None] * K + k[None, :], of_query, 0.0).to(tl.float32)
        q = tl.load(query + row * K + k, k < K, 0.0).to(tl.float32)[None, :]
        received = tl.load(grad + row * V + v, v < V, 0.0).to(tl.float32)[None, :]
        if HAS_REACH:
            q, received = tl.where(near, q, 0.0), tl.where(near, received, 0.0)
        total_value += tl.sum(q * r, 1)[:, None] * received
        row += step
    tl.store(grad_query + rows * K + k[None, :], total_query, of_query)
    tl.store(grad_value + rows * V + v[None, :], total_value, of_value)


@triton.jit
def _backward_table(
    query,
    value,
    grad,
    sums,
    lines,
    share,
    length,
    others,
    heads,
    step,
    other_step,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """``sums`` (parts, 2l - 1, K): of ``share`` lines each. A program works on ``BLOCK`` relative positions."""
    part = tl.program_id(0)
    start = tl.program_id(1) * BLOCK + 1 - length
    offset = start + tl.arange(0, BLOCK)
    k, v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    low, high = tl.maximum(0, 1 - start - BLOCK), tl.minimum(length, length - start)
    total = tl.zeros((BLOCK, BLOCK_K), tl.float32)
    for line in range(part * share, tl.minimum((part + 1) * share, lines)):
        first = _first_row(line, length, others, heads, other_step)
        row = first + low.to(tl.int64) * step
        for i in range(low, high):
            j = i + offset
            there = ((j >= 0) & (j < length))[:, None]
            of_value = there & (v < V)[None, :]
            neighbour = tl.load(value + (first + j.to(tl.int64) * step)[:, None] * V + v[None, :], of_value, 0.0)
            g = tl.load(grad + row * V + v, v < V, 0.0).to(tl.float32)
            q = tl.load(query + row * K + k, k < K, 0.0).to(tl.float32)
            product = tl.sum(neighbour.to(tl.float32) * g[None, :], 1)[:, None] * q[None, :]
            total += tl.where(there, product, 0.0)  # zero times infinity is NaN
            row += step
    rows = (part.to(tl.int64) * (2 * length - 1) + offset + length - 1)[:, None]
    tl.store(sums + rows * K + k[None, :], total, (offset < length)[:, None] & (k < K)[None, :])
