"""Depth-wise convolution on a GPU, in one pass over the map with the sum, the GELU and the gate around it.

A program works on some channels of a tile of pixels, whose neighbours come from the cache. The backward pass computes
the input of the GELU again. Sums are in float32, whatever the dtype of the map. The filters are read as they are, so
autocast does not convert them.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import cdiv, launch, limited, next_power_of_2, operators
from ..library import rows_of

#: sides of a tile, in pixels, and its channels
SIDE, CHANNELS = 8, 64
#: tiles below each other that one program of the filters' gradient sums over, and such sums that one adds up at a time
STEPS, PARTS = 8, 32


def depthwise_conv_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, skip: bool, gelu: bool, gated: bool
) -> Tensor:
    """``depthwise_conv`` without autocast."""
    return _operator(rows_of(x)[0], weight.contiguous(), bias, skip, gelu, gated)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, skip: bool, gelu: bool, gated: bool) -> Tensor:
    out = x.new_empty(*x.shape[:3], weight.shape[0])
    _run(x, weight, bias, out, skip, gelu, gated)
    return out


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, skip: bool, gelu: bool, gated: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those of all taps and of the bias, (k * k + 1, C) in float32."""
    grad, of_x = grad.contiguous(), x.new_empty(x.shape)
    _, H, W, C = grad.shape
    taps = weight.shape[-1] ** 2
    before = torch.empty_like(grad) if gelu or gated else grad  # gradient of the sum
    strips = x.shape[0] * cdiv(W, SIDE) * cdiv(H, SIDE * STEPS)
    parts = grad.new_empty(strips, taps + 1, C, dtype=torch.float32)
    launch(
        _depthwise_gradient, (strips * cdiv(C, CHANNELS),),
        *(x, weight, bias, grad, before, of_x if gated else None, parts), **_constants(x, weight), SKIP=skip, GELU=gelu,
        GATED=gated, HAS_BIAS=bias is not None, STEPS=STEPS, ROWS=next_power_of_2(taps + 1),
    )  # fmt: skip
    sums = parts.new_empty(parts.shape[1:])
    _run(before, weight, None, of_x, skip, False, False, parts, sums)
    return of_x, sums


def _setup(ctx, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.skip, ctx.gelu, ctx.gated = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    _, weight, bias = ctx.saved_tensors
    of_x, sums = _gradient_operator(grad, *ctx.saved_tensors, ctx.skip, ctx.gelu, ctx.gated)
    of_weight = sums[:-1].t().reshape(weight.shape).to(weight.dtype)
    return of_x, of_weight, None if bias is None else sums[-1].to(bias.dtype), None, None, None


_operator, _gradient_operator = operators('depthwise', _convolution, _setup, _differentiate, _gradients)


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    skip: bool,
    gelu: bool,
    gated: bool,
    parts: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Writes the first channels of ``out``. With ``parts``, the filters are mirrored, which is the gradient of a
    convolution's input from that of its output, and ``sums`` becomes the sum of the parts."""
    (B, H, W, _), C = x.shape, weight.shape[0]
    grid = (B * cdiv(W, SIDE) * cdiv(H, SIDE) * cdiv(C, CHANNELS),)
    settings = dict(SKIP=skip, GELU=gelu, GATED=gated, HAS_BIAS=bias is not None, FLIP=parts is not None, PARTS=PARTS)
    given = x, weight, bias, out, parts, sums, 0 if parts is None else len(parts), out.shape[3]
    launch(_depthwise, grid, *given, **_constants(x, weight), **settings)


def _constants(x: Tensor, weight: Tensor) -> dict[str, int]:
    """Arguments that both kernels have."""
    (_, H, W, _), C = x.shape, weight.shape[0]
    channels = min(CHANNELS, next_power_of_2(C))
    return dict(stride=x.stride(2), H=H, W=W, C=C, K=weight.shape[-1], SIDE=SIDE, CHANNELS=channels)


@triton.jit
def _program(C, CHANNELS: tl.constexpr):
    """Number of a program's tile or strip, its channels, and how many tiles or strips there are. Programs of all
    channels of a tile follow each other, because these are neighbours in memory."""
    groups = tl.cdiv(C, CHANNELS)
    c = tl.program_id(0) % groups * CHANNELS + tl.arange(0, CHANNELS)
    return tl.program_id(0) // groups, c, tl.num_programs(0) // groups


@triton.jit
def _place(image, top, left, row, column, H, W, SIDE: tl.constexpr):
    """A tile moved by rows and columns: the number of its first pixel in the batch, those of its pixels from there, and
    which of them are in the map."""
    i = tl.arange(0, SIDE * SIDE)
    y, x = top + row + i // SIDE, left + column + i % SIDE
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
    return (image.to(tl.int64) * H + top + row) * W + left + column, i // SIDE * W + i % SIDE, inside


@triton.jit
def _read(x, image, top, left, row, column, c, stride, H, W, C, SIDE: tl.constexpr):
    """The channels c of a moved tile, zero outside the map."""
    first, pixel, inside = _place(image, top, left, row, column, H, W, SIDE)
    place = first * stride + (pixel[:, None] * stride + c[None, :])
    return tl.load(x + place, inside[:, None] & (c < C)[None, :], 0.0).to(tl.float32)


@triton.jit
def _write(x, values, image, top, left, c, stride, H, W, C, SIDE: tl.constexpr):
    first, pixel, inside = _place(image, top, left, 0, 0, H, W, SIDE)
    place = first * stride + (pixel[:, None] * stride + c[None, :])
    tl.store(x + place, values, inside[:, None] & (c < C)[None, :])


@triton.jit
def _convolved(
    x, weight, bias, image, top, left, c, stride, H, W, C,
    K: tl.constexpr, SKIP: tl.constexpr, HAS_BIAS: tl.constexpr, FLIP: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((SIDE * SIDE, c.shape[0]), tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :]
    for row in range(K):  # not unrolled: it would load all taps at once, and spill
        for column in tl.static_range(K):
            tap = row * K + column
            filters = tl.load(weight + c * K * K + (K * K - 1 - tap if FLIP else tap), c < C, 0.0).to(tl.float32)
            if SKIP and column == K // 2:
                filters += tl.where(row == K // 2, 1.0, 0.0)
            total += _read(x, image, top, left, row - K // 2, column - K // 2, c, stride, H, W, C, SIDE) * filters
    return total


@triton.jit
def _normal(x):
    """The distribution function of the normal distribution: GELU is x times it."""
    return 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)


@partial(limited, num_warps=8)
@triton.jit
def _depthwise(
    x, weight, bias, out, parts, sums, count, out_stride, stride, H, W, C, K: tl.constexpr, SIDE: tl.constexpr,
    CHANNELS: tl.constexpr, SKIP: tl.constexpr, GELU: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    FLIP: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    tile, c, tiles = _program(C, CHANNELS)
    across, down = tl.cdiv(W, SIDE), tl.cdiv(H, SIDE)
    image, top, left = tile // across // down, tile // across % down * SIDE, tile % across * SIDE
    total = _convolved(x, weight, bias, image, top, left, c, stride, H, W, C, K, SKIP, HAS_BIAS, FLIP, SIDE)
    if GELU:
        total *= _normal(total)
    if GATED:
        total *= _read(x + C, image, top, left, 0, 0, c, stride, H, W, C, SIDE)
    _write(out, total, image, top, left, c, out_stride, H, W, C, SIDE)
    if FLIP:
        for row in range(tile, K * K + 1, tiles):
            summed = tl.zeros((PARTS, CHANNELS), tl.float32)
            for first in range(0, count, PARTS):
                part = first + tl.arange(0, PARTS)[:, None]
                place = parts + (part * (K * K + 1) + row) * C + c[None, :]
                summed += tl.load(place, (part < count) & (c < C)[None, :], 0.0)
            tl.store(sums + row * C + c, tl.sum(summed, 0), c < C)


@partial(limited, num_warps=8)
@triton.jit
def _depthwise_gradient(
    x, weight, bias, grad, before, of_x, parts, stride, H, W, C, K: tl.constexpr, SIDE: tl.constexpr,
    CHANNELS: tl.constexpr, SKIP: tl.constexpr, GELU: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr,
    STEPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums over a strip of tiles for each tap, and in the last row for the bias. Also the gradient of the gate."""
    strip, c, _ = _program(C, CHANNELS)
    across, down, number = tl.cdiv(W, SIDE), tl.cdiv(H, SIDE * STEPS), tl.arange(0, ROWS)[:, None]
    image, left = strip // across // down, strip % across * SIDE
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    for step in range(STEPS):
        top = (strip // across % down * STEPS + step) * SIDE
        if GELU or GATED:
            taken = _convolved(x, weight, bias, image, top, left, c, stride, H, W, C, K, SKIP, HAS_BIAS, False, SIDE)
        g = _read(grad, image, top, left, 0, 0, c, C, H, W, C, SIDE)
        if GELU or GATED:
            share = _normal(taken) if GELU else 1.0
            if GATED:
                _write(of_x + C, g * (taken * share), image, top, left, c, 2 * C, H, W, C, SIDE)
            if GELU:
                g *= share + taken * 0.3989422804014327 * tl.exp(-0.5 * taken * taken)
            if GATED:
                g *= _read(x + C, image, top, left, 0, 0, c, stride, H, W, C, SIDE)
            _write(before, g, image, top, left, c, C, H, W, C, SIDE)
        total += tl.where(number == K * K, tl.sum(g, 0)[None, :], 0.0)
        for row in range(K):
            for column in tl.static_range(K):
                near = _read(x, image, top, left, row - K // 2, column - K // 2, c, stride, H, W, C, SIDE)
                total += tl.where(number == row * K + column, tl.sum(g * near, 0)[None, :], 0.0)
    tl.store(parts + (strip * (K * K + 1) + number) * C + c[None, :], total, (number <= K * K) & (c < C)[None, :])
