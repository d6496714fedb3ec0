"""The ELSA operator on a GPU. The forward and the backward pass each read the neighbours once; only inputs are kept.

A program works on ``BLOCK`` pixels of one head. Sums are in float32, whatever the dtype of the maps.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
#: pixels that one program of the ghost matrices' gradient sums over
CHUNK = 4096


def elsa_attention_triton(
    logits: Tensor,
    value: Tensor,
    ghost_mul: Tensor | None = None,
    ghost_add: Tensor | None = None,
    dilation: int = 1,
    dropout_p: float = 0.0,
) -> Tensor:
    """``elsa_attention_reference``, both ghost terms in one kernel."""
    heads = logits.shape[-2]
    attention = F.dropout(logits.softmax(-1), dropout_p)
    # (taps, C): a program then reads contiguous parts of a ghost matrix
    ghosts = (None if ghost is None else ghost.float().flatten(1).t().contiguous() for ghost in (ghost_mul, ghost_add))
    return _Aggregate.apply(attention, value.unflatten(-1, (heads, -1)), *ghosts, dilation).flatten(-2)


class _Aggregate(torch.autograd.Function):
    """``sum_j (attention[j] * mul[j] + add[j]) * shift_j(value)``.

    attention: (B, H, W, heads, taps); value: (B, H, W, heads, d); mul, add: (taps, heads * d), float32, or None.
    """

    @staticmethod
    def forward(ctx, attention: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
        attention = attention.contiguous()
        ctx.save_for_backward(attention, value, mul, add)
        ctx.dilation = dilation
        out = torch.empty_like(value, memory_format=torch.contiguous_format)
        rows = value.reshape(-1, value.shape[3] * value.shape[4])  # no copy of a part of a fused projection
        settings = _settings(attention, value, mul, add, dilation)
        _forward[_grid(value)](attention, rows, mul, add, out, rows.stride(0), **settings)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, value, mul, add = ctx.saved_tensors
        grad = grad.contiguous()
        rows = value.reshape(-1, value.shape[3] * value.shape[4])
        settings = _settings(attention, value, mul, add, ctx.dilation)
        grad_attention = torch.empty_like(attention)
        grad_value = torch.empty_like(value, memory_format=torch.contiguous_format)
        _backward[_grid(value)](attention, rows, mul, add, grad, grad_attention, grad_value, rows.stride(0), **settings)
        grad_mul = grad_add = None
        if mul is not None or add is not None:
            chunks = triton.cdiv(len(rows), CHUNK)
            partial = rows.new_empty(2, chunks, attention.shape[4], rows.shape[1], dtype=torch.float32)
            _backward_ghost[(attention.shape[4], attention.shape[3], chunks)](
                attention, rows, grad, partial[0], partial[1], rows.stride(0), CHUNK=CHUNK, **settings
            )
            grad_mul, grad_add = (None if ghost is None else sums.sum(0) for ghost, sums in zip((mul, add), partial))
        return grad_attention, grad_value, grad_mul, grad_add, None


def _grid(value: Tensor) -> tuple[int, int]:
    B, H, W, heads, _ = value.shape
    return triton.cdiv(B * H * W, BLOCK), heads


def _settings(attention: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> dict:
    B, H, W, heads, d = value.shape
    return dict(
        N=B * H * W,
        H=H,
        W=W,
        heads=heads,
        dilation=dilation,
        D=d,
        K=math.isqrt(attention.shape[-1]),
        HAS_MUL=mul is not None,
        HAS_ADD=add is not None,
        BLOCK=BLOCK,
        BLOCK_D=triton.next_power_of_2(d),
    )


@triton.jit
def _forward(
    attention,
    value,
    mul,
    add,
    out,
    stride,
    N,
    H,
    W,
    heads,
    dilation,
    D: tl.constexpr,
    K: tl.constexpr,
    HAS_MUL: tl.constexpr,
    HAS_ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    head = tl.program_id(1)
    c = tl.arange(0, BLOCK_D)
    y, x = n // W % H, n % W
    total = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for j in range(K * K):
        dy, dx = (j // K - K // 2) * dilation, (j % K - K // 2) * dilation
        there = (n < N) & (y + dy >= 0) & (y + dy < H) & (x + dx >= 0) & (x + dx < W)
        both = there[:, None] & (c < D)[None, :]
        weight = tl.load(attention + (n * heads + head) * K * K + j, there, 0.0).to(tl.float32)[:, None]
        if HAS_MUL:
            weight = weight * tl.load(mul + (j * heads + head) * D + c, c < D, 0.0)[None, :]
        if HAS_ADD:
            weight = weight + tl.load(add + (j * heads + head) * D + c, c < D, 0.0)[None, :]
        neighbour = tl.load(value + (n + dy * W + dx)[:, None] * stride + head * D + c[None, :], both, 0.0)
        total += weight * neighbour.to(tl.float32)
    tl.store(out + ((n * heads + head) * D)[:, None] + c[None, :], total, (n < N)[:, None] & (c < D)[None, :])


@triton.jit
def _backward(
    attention,
    value,
    mul,
    add,
    grad,
    grad_attention,
    grad_value,
    stride,
    N,
    H,
    W,
    heads,
    dilation,
    D: tl.constexpr,
    K: tl.constexpr,
    HAS_MUL: tl.constexpr,
    HAS_ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    head = tl.program_id(1)
    c = tl.arange(0, BLOCK_D)
    y, x = n // W % H, n % W
    here = (n < N)[:, None] & (c < D)[None, :]
    g = tl.load(grad + ((n * heads + head) * D)[:, None] + c[None, :], here, 0.0).to(tl.float32)
    total = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for j in range(K * K):
        dy, dx = (j // K - K // 2) * dilation, (j % K - K // 2) * dilation
        # The pixel as query: it received a value from its neighbour j.
        there = (n < N) & (y + dy >= 0) & (y + dy < H) & (x + dx >= 0) & (x + dx < W)
        both = there[:, None] & (c < D)[None, :]
        neighbour = tl.load(value + (n + dy * W + dx)[:, None] * stride + head * D + c[None, :], both, 0.0)
        product = g * neighbour.to(tl.float32)
        # The pixel as neighbour j of another query.
        there = (n < N) & (y - dy >= 0) & (y - dy < H) & (x - dx >= 0) & (x - dx < W)
        both = there[:, None] & (c < D)[None, :]
        query = (n - dy * W - dx) * heads + head
        weight = tl.load(attention + query * K * K + j, there, 0.0).to(tl.float32)[:, None]
        if HAS_MUL:
            factor = tl.load(mul + (j * heads + head) * D + c, c < D, 0.0)[None, :]
            product, weight = product * factor, weight * factor
        if HAS_ADD:
            weight = weight + tl.load(add + (j * heads + head) * D + c, c < D, 0.0)[None, :]
        total += weight * tl.load(grad + (query * D)[:, None] + c[None, :], both, 0.0).to(tl.float32)
        tl.store(grad_attention + (n * heads + head) * K * K + j, tl.sum(product, 1), n < N)
    tl.store(grad_value + ((n * heads + head) * D)[:, None] + c[None, :], total, here)


@triton.jit
def _backward_ghost(
    attention,
    value,
    grad,
    grad_mul,
    grad_add,
    stride,
    N,
    H,
    W,
    heads,
    dilation,
    D: tl.constexpr,
    K: tl.constexpr,
    HAS_MUL: tl.constexpr,
    HAS_ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
):
    j, head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = tl.arange(0, BLOCK_D)
    dy, dx = (j // K - K // 2) * dilation, (j % K - K // 2) * dilation
    total_mul = tl.zeros((BLOCK_D,), tl.float32)
    total_add = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, CHUNK, BLOCK):
        n = (chunk * CHUNK + start + tl.arange(0, BLOCK)).to(tl.int64)
        y, x = n // W % H, n % W
        there = (n < N) & (y + dy >= 0) & (y + dy < H) & (x + dx >= 0) & (x + dx < W)
        both = there[:, None] & (c < D)[None, :]
        g = tl.load(grad + ((n * heads + head) * D)[:, None] + c[None, :], both, 0.0).to(tl.float32)
        neighbour = tl.load(value + (n + dy * W + dx)[:, None] * stride + head * D + c[None, :], both, 0.0)
        product = g * neighbour.to(tl.float32)
        total_add += tl.sum(product, 0)
        if HAS_MUL:
            weight = tl.load(attention + (n * heads + head) * K * K + j, there, 0.0).to(tl.float32)
            total_mul += tl.sum(product * weight[:, None], 0)
    place = ((chunk * K * K + j) * heads + head) * D + c
    if HAS_MUL:
        tl.store(grad_mul + place, total_mul, c < D)
    if HAS_ADD:
        tl.store(grad_add + place, total_add, c < D)
