"""Batch norm, alone or with ReLU and a shortcut, on a GPU: a pass over the map for the statistics, and one for the
rest.

A program goes through some channels of many pixels, tile by tile. Sums are in float32, whatever the dtype of the map.
Each program stores its own, and those of the next pass add them all, so that the order of additions is always the same.
The backward pass keeps the map, and the result if there is a shortcut, which the next layer keeps, too. torch.compile
does not come here: it fuses norms itself.
"""

from functools import lru_cache, partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from ..derivatives import apply
from ..gpu import cdiv, limited, next_power_of_2, run
from ..library import rows_of

#: channels of a tile, its numbers, and the programs for a map, at most or about. Programs of 64 registers all run at a
#: time on an A100 or a larger GPU, and read enough at a time; narrow tiles have few sums to add.
CHANNELS, NUMBERS, PROGRAMS = 32, 2048, 432
#: parts of a map whose sums are read at a time
PARTS = 64


class NormReLU:
    """``relu((x - mean) / sqrt(variance + eps) * weight + bias + shortcut)`` of maps (B, H, W, C), as a function of x
    that may be called again.

    Args:
        x: the map that the function is for. Here its statistics are computed.
        shortcut: like x, or None.
        weight, bias: (C).
        eps: added to the variance.
        running: mean and variance in place of those of x, or None.
        norm: whose running statistics follow those of x in the first call, as in torch; or None.
        dtype: of the result; None: that of x.
        relu: False leaves ReLU out; then there is no shortcut.
    """

    def __init__(
        self, x: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, eps: float,
        running: tuple[Tensor, Tensor] | None = None, norm: nn.BatchNorm2d | None = None,
        dtype: torch.dtype | None = None, relu: bool = True,
    ) -> None:  # fmt: skip
        self.relu = relu
        self.arguments = shortcut, weight, bias, eps
        self.own = running is None
        self.statistics = running or x.new_empty(2, x.shape[-1], dtype=torch.float32).unbind()
        self.parts, self.norm, self.dtype = None, norm, dtype or x.dtype
        if self.own:
            rows, stride = rows_of(x.detach())
            grid, sizes = _parts(x)
            self.parts = x.new_empty(2, grid[0], x.shape[-1], dtype=torch.float32)
            run(_norm_statistics, grid, rows, self.parts, stride, **sizes)

    def __call__(self, x: Tensor) -> Tensor:
        parts, self.parts = self.parts, None
        given = *self.arguments, *self.statistics, self.own, parts, self.norm, self.dtype, self.relu
        return apply(_NormReLU, x, *given)

    def then(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """A convolution of the result, to (B, C', H', W'). The backward pass keeps x, and computes the result again."""
        parts, self.parts = self.parts, None
        filters = conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups
        given = *self.arguments[1:], *self.statistics, self.own, parts, self.norm, self.dtype
        return _NormReLUConvolution.apply(x, *given, *filters)


def result(x, shortcut, weight, bias, eps, mean, variance, parts, norm, dtype, relu=True) -> Tensor:
    """With ``parts``, what was found of the parts of x, it computes mean and variance; without, it reads them."""
    (rows, stride), added = rows_of(x), (None, 0) if shortcut is None else rows_of(shortcut)
    out = torch.empty_like(rows, dtype=dtype, memory_format=torch.contiguous_format)
    follows = parts is not None and norm is not None
    running = [norm.running_mean, norm.running_var, norm.num_batches_tracked] if follows else []
    grid, sizes = _parts(x)
    run(
        _norm_relu, grid, *(rows, added[0], weight, bias, mean, variance, out, parts), *(running or [None] * 3),
        eps, float(norm.momentum) if follows else 0.0, stride, added[1], **sizes, SHORTCUT=shortcut is not None,
        RELU=relu, OWN=parts is not None, FOLLOWS=follows, PARTS=PARTS,
    )  # fmt: skip
    for buffer in running:
        increment_version(buffer)
    return out


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shortcut, weight, bias, eps, mean, variance, own, parts, norm, dtype, relu) -> Tensor:
        out = result(x, shortcut, weight, bias, eps, mean, variance, parts, norm, dtype, relu)
        ctx.save_for_backward(x, weight, bias, mean, variance, None if shortcut is None else out)
        ctx.numbers = eps, own, relu
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # create_graph=True: torch's operators have second derivatives
        function = _differentiable if torch.is_grad_enabled() else gradients
        found = function(grad, *ctx.saved_tensors, *ctx.numbers)
        return *found, *[None] * 8


class _NormReLUConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x, weight, bias, eps, mean, variance, own, parts, norm, dtype, filters, offset, *settings
    ) -> Tensor:  # fmt: skip
        out = result(x, None, weight, bias, eps, mean, variance, parts, norm, dtype)
        cast = filters.to(dtype)
        ctx.save_for_backward(x, weight, bias, mean, variance, filters, cast, offset)
        ctx.numbers, ctx.settings = (eps, own), settings
        return F.conv2d(out.permute(0, 3, 1, 2), cast, None if offset is None else offset.to(dtype), *settings)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        function = _convolution_differentiable if torch.is_grad_enabled() else _convolution_gradients
        needed = ctx.needs_input_grad[10:12]
        of_x, of_weight, of_bias, *of_conv = function(grad, *ctx.saved_tensors, *ctx.numbers, ctx.settings, needed)
        return of_x, of_weight, of_bias, *[None] * 7, *of_conv, *[None] * len(ctx.settings)


def _convolution_gradients(
    grad, x, weight, bias, mean, variance, filters, cast, offset, eps: float, own: bool, settings: tuple,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Those of x, weight, bias, and of filters and offset if they are needed."""
    out = result(x, None, weight, bias, eps, mean, variance, None, None, cast.dtype).permute(0, 3, 1, 2)
    *stride_to_dilation, groups = settings
    of_out, of_filters, of_offset = torch.ops.aten.convolution_backward(
        grad, out, cast, None if offset is None else offset.shape, *stride_to_dilation, False, [0, 0], groups,
        [True, *needed],
    )  # fmt: skip
    of_out = of_out.permute(0, 2, 3, 1)
    of_x, _, of_weight, of_bias = gradients(of_out, x, weight, bias, mean, variance, None, eps, own)
    of_conv = (
        found.to(of.dtype) if need else None
        for found, of, need in zip((of_filters, of_offset), (filters, offset), needed)
    )
    return of_x, of_weight, of_bias, *of_conv


def _convolution_differentiable(
    grad, x, weight, bias, mean, variance, filters, cast, offset, eps: float, own: bool, settings: tuple,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same by torch, with derivatives."""
    running = (None, None) if own else (mean, variance)
    out = F.relu(F.batch_norm(x.permute(0, 3, 1, 2), *running, weight, bias, own, 0.0, eps)).to(cast.dtype)
    out = F.conv2d(out, filters.to(cast.dtype), None if offset is None else offset.to(cast.dtype), *settings)
    inputs = [each for each in (x, weight, bias, filters, offset) if each is not None and each.requires_grad]
    found = dict(zip(map(id, inputs), torch.autograd.grad(out, inputs, grad, create_graph=True)))
    return tuple(found.get(id(each)) for each in (x, weight, bias, filters, offset))


def gradients(
    grad, x, weight, bias, mean, variance, out, eps: float, own: bool, relu: bool = True
) -> tuple[Tensor | None, ...]:
    """Those of x, shortcut, weight and bias."""
    (x, stride), grad = rows_of(x), grad.contiguous()
    grid, sizes = _parts(x)
    sizes.update(SHORTCUT=out is not None, RELU=relu)
    of_shortcut, of_x = None if out is None else torch.empty_like(grad), torch.empty_like(grad, dtype=x.dtype)
    parts = x.new_empty(2, grid[0], x.shape[-1], dtype=torch.float32)
    of_bias, of_weight = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (bias, weight))
    tensors = x, weight, bias, mean, variance
    run(_norm_relu_sums, grid, *tensors, grad, out, of_shortcut, parts, eps, stride, **sizes)
    grad = grad if out is None else of_shortcut  # after ReLU
    results = of_x, of_weight, of_bias
    run(_norm_relu_gradient, grid, *tensors, grad, parts, *results, eps, stride, **sizes, OWN=own, PARTS=PARTS)
    return of_x, of_shortcut, of_weight, of_bias


def _differentiable(
    grad, x, weight, bias, mean, variance, out, eps: float, own: bool, relu: bool
) -> tuple[Tensor | None, ...]:
    """The same by torch, with derivatives."""
    running = (None, None) if own else (mean, variance)
    before = F.batch_norm(x.permute(0, 3, 1, 2), *running, weight, bias, own, 0.0, eps).permute(0, 2, 3, 1)
    grad = (grad.masked_fill((before if out is None else out) <= 0, 0) if relu else grad).to(before.dtype)
    inputs = [each for each in (x, weight, bias) if each.requires_grad]
    found = dict(zip(map(id, inputs), torch.autograd.grad(before, inputs, grad, create_graph=True)))
    of_x, *others = (found.get(id(each)) for each in (x, weight, bias))
    return of_x, None if out is None else grad, *others


def _parts(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of a map (B, H, W, C): parts of its pixels, and of its channels; and arguments of all kernels."""
    grid, sizes = _sizes(x.numel(), x.shape[-1], CHANNELS, NUMBERS, PROGRAMS)
    return grid, dict(sizes)


@lru_cache(maxsize=4096)  # a step asks four times for each norm
def _sizes(numel: int, C: int, most: int, numbers: int, programs: int) -> tuple[tuple[int, int], dict[str, int]]:
    channels = min(most, next_power_of_2(C))
    rows = max(1, numbers // channels)
    pixels, across = numel // C, cdiv(C, channels)
    tiles = cdiv(cdiv(pixels, rows), max(1, programs // across))  # of a program
    sizes = dict(pixels=pixels, C=C, tiles=tiles, ROWS=rows, CHANNELS=channels)
    return (cdiv(pixels, tiles * rows), across), sizes


@triton.jit
def _part(pixels, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The first pixel of a program, how many it has, and its channels."""
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    return first, tl.minimum(pixels - first, tiles * ROWS), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def _place(first, count, tile, c, stride, C, ROWS: tl.constexpr):
    """Of a tile of a part: where its numbers are in memory, and which of them are in the map."""
    row = tl.arange(0, ROWS)
    inside = (tile * ROWS + row < count)[:, None] & (c < C)[None, :]
    return (first + tile * ROWS) * stride + (row[:, None] * stride + c[None, :]), inside


@triton.jit
def _read(x, first, count, tile, c, stride, C, ROWS: tl.constexpr):
    """A tile, zero outside the map."""
    place, inside = _place(first, count, tile, c, stride, C, ROWS)
    return tl.load(x + place, inside, 0.0).to(tl.float32)


@triton.jit
def _write(x, values, first, count, tile, c, C, ROWS: tl.constexpr):
    place, inside = _place(first, count, tile, c, C, C, ROWS)
    tl.store(x + place, values, inside)


@triton.jit
def _channels(x, c, C):
    return tl.load(x + c, c < C, 0.0).to(tl.float32)


@triton.jit
def _sum(parts, number, c, C, PARTS: tl.constexpr):
    """The sum of the rows of parts (number, C)."""
    total = tl.zeros((PARTS, c.shape[0]), tl.float32)
    for start in range(0, number, PARTS):
        part = start + tl.arange(0, PARTS)
        total += tl.load(parts + part[:, None] * C + c[None, :], (part < number)[:, None] & (c < C)[None, :], 0.0)
    return tl.sum(total, 0)


_limited = partial(limited, registers=64, num_warps=8)


@_limited
@triton.jit
def _norm_statistics(x, parts, stride, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Of each part, the sum and the sum of squared differences from its mean. Differences are first from the mean of
    its first tile, so that they lose no digits where the mean is far from zero."""
    first, count, c = _part(pixels, tiles, ROWS, CHANNELS)
    near = tl.sum(_read(x, first, count, 0, c, stride, C, ROWS), 0) / tl.minimum(count, ROWS).to(tl.float32)
    total, squares = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in range(tiles):
        difference = _read(x, first, count, tile, c, stride, C, ROWS) - near[None, :]
        difference = tl.where((tile * ROWS + tl.arange(0, ROWS) < count)[:, None], difference, 0.0)
        total += difference
        squares += difference * difference
    difference, count = tl.sum(total, 0), count.to(tl.float32)
    place = parts + tl.program_id(0) * C + c
    tl.store(place, near * count + difference, c < C)
    squared = tl.sum(squares, 0) - difference * difference / count
    tl.store(place + tl.num_programs(0) * C, tl.maximum(squared, 0.0), c < C)


@triton.jit
def _merged(parts, pixels, size, c, C, PARTS: tl.constexpr):
    """Mean and variance of channels, from what ``_norm_statistics`` found of parts of ``size`` pixels."""
    number = tl.num_programs(0)
    mean = _sum(parts, number, c, C, PARTS) / pixels
    squares = tl.zeros((PARTS, c.shape[0]), tl.float32)
    for start in range(0, number, PARTS):
        part = start + tl.arange(0, PARTS)
        place, inside = parts + part[:, None] * C + c[None, :], (part < number)[:, None] & (c < C)[None, :]
        count = tl.minimum(pixels - part * size, size).to(tl.float32)[:, None]
        difference = tl.load(place, inside, 0.0) / count - mean[None, :]
        squared = tl.load(place + number * C, inside, 0.0) + count * difference * difference
        squares += tl.where(inside, squared, 0.0)
    return mean, tl.sum(squares, 0) / pixels


@_limited
@triton.jit
def _norm_relu(
    x, shortcut, weight, bias, mean, variance, out, parts, running_mean, running_variance, batches, eps, momentum,
    stride, shortcut_stride, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr, SHORTCUT: tl.constexpr,
    RELU: tl.constexpr, OWN: tl.constexpr, FOLLOWS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    first, count, c = _part(pixels, tiles, ROWS, CHANNELS)
    if OWN:
        m, v = _merged(parts, pixels, tiles * ROWS, c, C, PARTS)
        if tl.program_id(0) == 0:
            tl.store(mean + c, m, c < C)
            tl.store(variance + c, v, c < C)
            if FOLLOWS:
                before = (1 - momentum) * _channels(running_mean, c, C)
                tl.store(running_mean + c, before + momentum * m, c < C)
                before = (1 - momentum) * _channels(running_variance, c, C)
                tl.store(running_variance + c, before + momentum * (v * pixels / (pixels - 1)), c < C)
                if tl.program_id(1) == 0:
                    tl.store(batches, tl.load(batches) + 1)
    else:
        m, v = _channels(mean, c, C), _channels(variance, c, C)
    w, b = _channels(weight, c, C) / tl.sqrt(v + eps), _channels(bias, c, C)
    for tile in range(tiles):
        y = (_read(x, first, count, tile, c, stride, C, ROWS) - m[None, :]) * w[None, :] + b[None, :]
        if SHORTCUT:
            y += _read(shortcut, first, count, tile, c, shortcut_stride, C, ROWS)
        if RELU:
            y = tl.where(y <= 0, 0.0, y)  # NaN stays
        _write(out, y, first, count, tile, c, C, ROWS)


@_limited
@triton.jit
def _norm_relu_sums(
    x, weight, bias, mean, variance, grad, out, of_shortcut, parts, eps, stride, pixels, C, tiles, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Of each part, the sums for the gradients of bias and weight. The gradient of the shortcut is that of the result,
    where ReLU is not zero."""
    first, count, c = _part(pixels, tiles, ROWS, CHANNELS)
    m, b, r = _channels(mean, c, C), _channels(bias, c, C), 1 / tl.sqrt(_channels(variance, c, C) + eps)
    w = _channels(weight, c, C) * r
    of_bias, of_weight = tl.zeros((ROWS, CHANNELS), tl.float32), tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in range(tiles):
        centred = _read(x, first, count, tile, c, stride, C, ROWS) - m[None, :]
        g = _read(grad, first, count, tile, c, C, C, ROWS)
        if SHORTCUT:
            g = tl.where(_read(out, first, count, tile, c, C, C, ROWS) <= 0, 0.0, g)
            _write(of_shortcut, g, first, count, tile, c, C, ROWS)
        elif RELU:
            g = tl.where(centred * w[None, :] + b[None, :] <= 0, 0.0, g)
        of_bias += g
        of_weight += g * centred
    place = parts + tl.program_id(0) * C + c
    tl.store(place, tl.sum(of_bias, 0), c < C)
    tl.store(place + tl.num_programs(0) * C, tl.sum(of_weight, 0) * r, c < C)


@_limited
@triton.jit
def _norm_relu_gradient(
    x, weight, bias, mean, variance, grad, parts, of_x, of_weight, of_bias, eps, stride, pixels, C, tiles,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, SHORTCUT: tl.constexpr, RELU: tl.constexpr, OWN: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    first, count, c = _part(pixels, tiles, ROWS, CHANNELS)
    m, b, r = _channels(mean, c, C), _channels(bias, c, C), 1 / tl.sqrt(_channels(variance, c, C) + eps)
    w = _channels(weight, c, C) * r
    number = tl.num_programs(0)
    to_bias, to_weight = _sum(parts, number, c, C, PARTS), _sum(parts + number * C, number, c, C, PARTS)
    if tl.program_id(0) == 0:
        tl.store(of_bias + c, to_bias, c < C)
        tl.store(of_weight + c, to_weight, c < C)
    to_bias, to_weight = to_bias / pixels * w, to_weight / pixels * w * r
    for tile in range(tiles):
        g = _read(grad, first, count, tile, c, C, C, ROWS)
        if OWN or RELU and not SHORTCUT:
            centred = _read(x, first, count, tile, c, stride, C, ROWS) - m[None, :]
            if RELU and not SHORTCUT:
                g = tl.where(centred * w[None, :] + b[None, :] <= 0, 0.0, g)
        g *= w[None, :]
        if OWN:
            g -= to_bias[None, :] + centred * to_weight[None, :]
        _write(of_x, g, first, count, tile, c, C, ROWS)
