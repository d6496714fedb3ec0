"""Transposing and pooling maps on a GPU, where torch's kernels move at most a third of the bytes a second of a copy.

Both are linear, and each is the other's gradient, or its own.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from .derivatives import apply
from .gpu import cdiv, limited, next_power_of_2, run
from .library import rows_of

#: rows and columns of a tile that is transposed
SIDE = 64
#: channels of a tile of pooled pixels, at most, and its numbers
CHANNELS, NUMBERS = 128, 2048


def transposed_triton(x: Tensor) -> Tensor:
    """Matrices (B, M, N) of any strides -> (B, N, M), contiguous."""
    return apply(_Transposed, x)


def average_pool_triton(x: Tensor) -> Tensor:
    """2 x 2 average pooling, an odd last row or column alone: (B, H, W, C) -> (B, ceil(H / 2), ceil(W / 2), C)."""
    return apply(_Pool, x, x.shape[1], x.shape[2], False)


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        B, M, N = x.shape
        out = x.new_empty(B, N, M)
        if out.numel():
            grid = (B * cdiv(M, SIDE) * cdiv(N, SIDE),)
            run(_transpose, grid, x, out, *x.stride(), M, N, SIDE=SIDE)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad.mT if grad.mT.is_contiguous() else _Transposed.apply(grad)

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        return _Transposed.apply(tangent)


class _Pool(torch.autograd.Function):
    """Of a map that is H x W before pooling, or, if it is the gradient (``up``), afterwards."""

    @staticmethod
    def forward(ctx, x: Tensor, H: int, W: int, up: bool) -> Tensor:
        ctx.settings = H, W, up
        (x, stride), (B, _, _, C) = rows_of(x), x.shape
        h, w = cdiv(H, 2), cdiv(W, 2)
        out = x.new_empty(B, *((H, W) if up else (h, w)), C)
        channels = min(CHANNELS, next_power_of_2(C))
        rows = NUMBERS // channels
        grid = cdiv(B * h * w, rows), cdiv(C, channels)
        if out.numel():
            run(_pool, grid, x, out, stride, B * h * w, H, W, h, w, C, ROWS=rows, CHANNELS=channels, UP=up)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        H, W, up = ctx.settings
        return _Pool.apply(grad, H, W, not up), None, None, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, *_: None) -> Tensor:
        return _Pool.apply(tangent, *ctx.settings)


_limited = partial(limited, registers=64, num_warps=8)


@_limited
@triton.jit
def _transpose(x, out, image_stride, row_stride, column_stride, M, N, SIDE: tl.constexpr):
    number, across = tl.program_id(0), tl.cdiv(N, SIDE)
    tiles = tl.cdiv(M, SIDE) * across
    image, tile, t = (number // tiles).to(tl.int64), number % tiles, tl.arange(0, SIDE)
    m, n = tile // across * SIDE + t, tile % across * SIDE + t
    place = m.to(tl.int64)[:, None] * row_stride + n.to(tl.int64)[None, :] * column_stride
    values = tl.load(x + image * image_stride + place, (m < M)[:, None] & (n < N)[None, :])
    place = n.to(tl.int64)[:, None] * M + m[None, :]
    tl.store(out + image * M * N + place, tl.trans(values), (n < N)[:, None] & (m < M)[None, :])


@_limited
@triton.jit
def _pool(
    x, out, stride, pixels, H, W, h, w, C, ROWS: tl.constexpr, CHANNELS: tl.constexpr, UP: tl.constexpr
):  # fmt: skip
    """Some channels of some pooled pixels, whose numbers they read, or, if UP, whose gradients they write."""
    pixel, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row, column = pixel // w % h * 2, pixel % w * 2
    first = ((pixel // (h * w)).to(tl.int64) * H + row) * W + column
    down, right = row + 1 < H, column + 1 < W
    share = 1.0 / (tl.where(down, 2, 1) * tl.where(right, 2, 1)).to(tl.float32)
    inside = (pixel < pixels)[:, None] & (c < C)[None, :]
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    if UP:
        place = pixel.to(tl.int64)[:, None] * stride + c[None, :]
        total = tl.load(x + place, inside, 0.0).to(tl.float32) * share[:, None]
    for dy in tl.static_range(2):
        for dx in tl.static_range(2):
            there = inside & ((down | (dy == 0)) & (right | (dx == 0)))[:, None]
            place = first + dy * W + dx
            if UP:
                tl.store(out + place[:, None] * C + c[None, :], total, there)
            else:
                total += tl.load(x + place[:, None] * stride + c[None, :], there, 0.0).to(tl.float32)
    if not UP:
        tl.store(out + pixel.to(tl.int64)[:, None] * C + c[None, :], total * share[:, None], inside)
