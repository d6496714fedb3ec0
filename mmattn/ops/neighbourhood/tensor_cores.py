"""Neighbourhood attention of 16 bits on a GPU, as products of matrices. Attention weights are never in memory.

The pixels of an image with the same remainders modulo the dilation are a map of their own, a class. A program works on
a tile of 8 x 8 pixels of a class and one head, as NATTEN's kernels do. It goes through all pixels that attend or are
attended to by any of the tile, some rows of 16 at a time, and pairs outside of a window are masked. As in
FlashAttention, the forward pass keeps the log-sum-exp of the logits, and the backward pass makes weights from it. Sums
are in float32, and the table of biases is read as it is. No program writes what another one does, so that results do
not depend on their order.

NaN and infinity of a pixel reach all pixels of the tiles that see it, and all biases: zero times either is NaN.
"""

from functools import partial

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import as_float32, cdiv, launch, limited, next_power_of_2, operators, product
from ..library import rows_of
from .cpp import continued

LOG2E = tl.constexpr(1.4426950408889634)


def neighbourhood_attention_products(
    maps: Tensor, bias: Tensor | None, beyond: Tensor | None, kernel_size: int, dilation: int
) -> Tensor:
    """``neighbourhood_attention_reference`` of query, key and value as one tensor, (B, H, W, 3, heads, d)."""
    H, W = maps.shape[1:3]
    height, width = max(H, kernel_size * dilation), max(W, kernel_size * dilation)
    is_continued = (height, width) != (H, W)
    if is_continued:
        maps = continued(maps, None if beyond is None else F.pad(beyond, (0, 0, 0, 0, 1, 0)), height, width)
    out, _ = _operator(rows_of(maps)[0], None if bias is None else bias.contiguous(), kernel_size, dilation)
    return out[:, :H, :W] if is_continued else out


def _attention(maps: Tensor, bias: Tensor | None, k: int, dilation: int) -> tuple[Tensor, Tensor]:
    """The result, and the log-sum-exp of the logits in units of log 2."""
    B, H, W, _, heads, d = maps.shape
    out, lse = maps.new_empty(B, H, W, heads, d), maps.new_empty(B, H, W, heads, dtype=torch.float32)
    launch(_products, _grid(maps, dilation), maps, bias, out, lse, **_constants(maps, bias, k, dilation), ROWS=2)
    return out, lse


def _gradients(
    grad: Tensor, maps: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, k: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """Those of maps and bias."""
    grad, grid, constants = grad.contiguous(), _grid(maps, dilation), _constants(maps, bias, k, dilation)
    mean = torch.empty_like(lse)  # of the gradients of a query's weights
    of_maps = torch.empty_like(maps, memory_format=torch.contiguous_format)
    sums = lse.new_empty(*((1, 1) if bias is None else grid), 2 * k - 1, 2 * k - 1)  # of a program
    of_bias = torch.empty_like(sums[0])
    given = maps, bias, grad, lse, mean, of_maps
    side = max(next_power_of_2(2 * k - 1), 16)
    launch(_products_query_gradient, grid, *given, out, sums, **constants, ROWS=2, SIDE=side)
    launch(_products_key_gradient, grid, *given, sums, of_bias, **constants, ROWS=4)
    return of_maps, of_bias


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    maps, bias, *ctx.numbers = inputs
    ctx.set_materialize_grads(False)  # the log-sum-exp has none
    ctx.save_for_backward(maps, bias, *output)


def _differentiate(ctx, grad: Tensor, _) -> tuple[Tensor | None, ...]:
    bias = ctx.saved_tensors[1]
    of_maps, of_bias = _gradient_operator(grad, *ctx.saved_tensors, *ctx.numbers)
    return of_maps, None if bias is None else of_bias.to(bias.dtype), None, None


_operator, _gradient_operator = operators('neighbourhood_products', _attention, _setup, _differentiate, _gradients)


def _grid(maps: Tensor, dilation: int) -> tuple[int, int]:
    B, H, W, _, heads, _ = maps.shape
    down, across = (cdiv(cdiv(size, dilation), 8) for size in (H, W))
    return B * dilation * dilation * down * across, heads


def _constants(maps: Tensor, bias: Tensor | None, k: int, dilation: int) -> dict:
    """Arguments that all kernels have."""
    _, H, W, _, heads, d = maps.shape
    numbers = dict(H=H, W=W, dilation=dilation, heads=heads, scale=d**-0.5, stride=maps.stride(2))
    return numbers | dict(D=d, BLOCK_D=max(next_power_of_2(d), 16), K=k, HAS_BIAS=bias is not None)


@triton.jit
def _tile(H, W, dilation):
    """The number of the first pixel of a program's class in the batch, the sides of the class, and the first row and
    column of the tile in it."""
    tile, down, across = tl.program_id(0), tl.cdiv(tl.cdiv(H, dilation), 8), tl.cdiv(tl.cdiv(W, dilation), 8)
    top, left, of_class = tile // across % down * 8, tile % across * 8, tile // across // down
    row, column = of_class // dilation % dilation, of_class % dilation
    first = ((of_class // dilation // dilation).to(tl.int64) * H + row) * W + column
    return first, (H - 1 - row) // dilation + 1, (W - 1 - column) // dilation + 1, top, left


@triton.jit
def _pixels(top, left, n: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of n pixels of a class, row by row."""
    i = tl.arange(0, n)
    return top + i // COLUMNS, left + i % COLUMNS


@triton.jit
def _read(x, pixel, stride, there, c, D: tl.constexpr):
    """The channels c of pixels, zero outside of the class."""
    return tl.load(x + pixel[:, None] * stride + c, there[:, None] & (c < D), 0.0)


@triton.jit
def _window(place, length, K: tl.constexpr):
    """The first neighbour of a pixel of an axis."""
    return tl.minimum(tl.maximum(place - K // 2, 0), length - K)


@triton.jit
def _mask(place, other, length, K: tl.constexpr):
    """Along an axis, 0 where the other pixel is a neighbour, else minus infinity."""
    start = _window(place, length, K)
    return tl.where((other >= start) & (other < start + K), 0.0, float('-inf'))


@triton.jit
def _relative(place, other, K: tl.constexpr):
    """Along an axis, the number of a neighbour among 2K - 1 relative positions; some number for others."""
    return tl.minimum(tl.maximum(other - place + K - 1, 0), 2 * K - 2)


@triton.jit
def _logits(query, key, y, x, ky, kx, h, w, bias, scale, K: tl.constexpr, HAS_BIAS: tl.constexpr):
    """(queries, keys), minus infinity if a key is not a neighbour."""
    y, x, ky, kx = y[:, None], x[:, None], ky[None, :], kx[None, :]
    logits = product(query, tl.trans(key)) * scale
    if HAS_BIAS:
        row = tl.program_id(1) * (2 * K - 1) + _relative(y, ky, K)
        logits += tl.load(bias + row * (2 * K - 1) + _relative(x, kx, K)).to(tl.float32)
    return logits + (_mask(y, ky, h, K) + _mask(x, kx, w, K))


@partial(limited, num_stages=2)
@triton.jit
def _products(
    maps, bias, out, lse, H, W, dilation, heads, scale, stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    scale = as_float32(scale)
    head, c = tl.program_id(1), tl.arange(0, BLOCK_D)[None, :]
    first, h, w, top, left = _tile(H, W, dilation)
    y, x = _pixels(top, left, 64, 8)
    inside, own = (y < h) & (x < w), first + (y * W + x) * dilation
    maps += head * D
    query = _read(maps, own, stride, inside, c, D)
    first_row, first_column = _window(top, h, K), _window(left, w, K)
    rows = _window(tl.minimum(top + 7, h - 1), h, K) + K - first_row
    COLUMNS: tl.constexpr = (K + 22) // 16
    largest, weights = tl.full((64,), -1e30, tl.float32), tl.zeros((64,), tl.float32)
    total = tl.zeros((64, BLOCK_D), tl.float32)
    for step in range(tl.cdiv(rows, ROWS) * COLUMNS):
        row, column = first_row + step // COLUMNS * ROWS, first_column + step % COLUMNS * 16
        ky, kx = _pixels(row, column, 16 * ROWS, 16)
        there, at = (ky < h) & (kx < w), first + (ky * W + kx) * dilation
        key = _read(maps + heads * D, at, stride, there, c, D)
        value = _read(maps + 2 * heads * D, at, stride, there, c, D)
        logits = _logits(query, key, y, x, ky, kx, h, w, bias, scale, K, HAS_BIAS)
        larger = tl.maximum(largest, tl.max(logits, 1))
        shrink, weight = tl.exp2((largest - larger) * LOG2E), tl.exp2(logits * LOG2E - (larger * LOG2E)[:, None])
        weights = weights * shrink + tl.sum(weight, 1)
        total = product(weight.to(value.dtype), value, total * shrink[:, None])
        largest = larger
    place = (own[:, None] * heads + head) * D + c
    tl.store(out + place, total / weights[:, None], inside[:, None] & (c < D))
    tl.store(lse + own * heads + head, largest * LOG2E + tl.log2(weights), inside)


@partial(limited, num_stages=2)
@triton.jit
def _products_query_gradient(
    maps, bias, grad, lse, mean, of_maps, out, sums, H, W, dilation, heads, scale, stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr,
    SIDE: tl.constexpr,
):  # fmt: skip
    """Also means of the gradients of a query's weights, and sums of those of its logits by relative position."""
    scale = as_float32(scale)
    head, c = tl.program_id(1), tl.arange(0, BLOCK_D)[None, :]
    first, h, w, top, left = _tile(H, W, dilation)
    y, x = _pixels(top, left, 64, 8)
    inside, own = (y < h) & (x < w), first + (y * W + x) * dilation
    maps += head * D
    query = _read(maps, own, stride, inside, c, D)
    g = _read(grad + head * D, own, heads * D, inside, c, D)
    products = g.to(tl.float32) * _read(out + head * D, own, heads * D, inside, c, D).to(tl.float32)
    middle, norm = tl.sum(products, 1), tl.load(lse + own * heads + head, inside, float('inf'))
    tl.store(mean + own * heads + head, middle, inside)
    first_row, first_column = _window(top, h, K), _window(left, w, K)
    rows = _window(tl.minimum(top + 7, h - 1), h, K) + K - first_row
    COLUMNS: tl.constexpr = (K + 22) // 16
    total = tl.zeros((64, BLOCK_D), tl.float32)
    of_bias = tl.zeros((SIDE, SIDE), tl.float32)
    number, down, across = tl.arange(0, SIDE), tl.arange(0, 8 * ROWS), tl.arange(0, 8 * 16)
    for step in range(tl.cdiv(rows, ROWS) * COLUMNS):
        row, column = first_row + step // COLUMNS * ROWS, first_column + step % COLUMNS * 16
        ky, kx = _pixels(row, column, 16 * ROWS, 16)
        there, at = (ky < h) & (kx < w), first + (ky * W + kx) * dilation
        key = _read(maps + heads * D, at, stride, there, c, D)
        value = _read(maps + 2 * heads * D, at, stride, there, c, D)
        logits = _logits(query, key, y, x, ky, kx, h, w, bias, scale, K, HAS_BIAS)
        of_weight = product(g, tl.trans(value)) - middle[:, None]
        of_logit = (tl.exp2(logits * LOG2E - norm[:, None]) * of_weight).to(key.dtype)
        total = product(of_logit, key, total)
        if HAS_BIAS:  # products with zeros and ones sum over pairs of columns, then over pairs of rows
            pairs = tl.permute(tl.reshape(of_logit, (8, 8, ROWS, 16)), (0, 2, 1, 3))
            relative = column + across % 16 - (left + across // 16) + K - 1
            chosen = tl.where(relative[:, None] == number[None, :], 1.0, 0.0).to(key.dtype)
            part = product(tl.reshape(pairs, (8 * ROWS, 8 * 16)), chosen)
            relative = row + down % ROWS - (top + down // ROWS) + K - 1
            chosen = tl.where(number[:, None] == relative[None, :], 1.0, 0.0).to(key.dtype)
            high = part.to(key.dtype)  # two numbers of 16 bits have nearly all digits of the sum
            of_bias = product(chosen, high, of_bias)
            of_bias = product(chosen, (part - high.to(tl.float32)).to(key.dtype), of_bias)
    tl.store(of_maps + (own[:, None] * 3 * heads + head) * D + c, total * scale, inside[:, None] & (c < D))
    if HAS_BIAS:
        sums += (tl.program_id(0).to(tl.int64) * heads + head) * (2 * K - 1) * (2 * K - 1)
        known = (number < 2 * K - 1)[:, None] & (number < 2 * K - 1)[None, :]
        tl.store(sums + number[:, None] * (2 * K - 1) + number[None, :], of_bias, known)


@triton.jit
def _add_sums(sums, of_bias, heads, SIZE: tl.constexpr):
    """Adds the tables of all programs of a head. A program has 16 numbers of the table, or none, or 16 more."""
    programs, head = tl.num_programs(0), tl.program_id(1)
    for start in range(tl.program_id(0) * 16, SIZE, programs * 16):
        number, total = start + tl.arange(0, 16), tl.zeros((64, 16), tl.float32)
        for first in range(0, programs, 64):
            program = (first + tl.arange(0, 64)).to(tl.int64)
            there = (program < programs)[:, None] & (number < SIZE)[None, :]
            total += tl.load(sums + ((program * heads + head) * SIZE)[:, None] + number[None, :], there, 0.0)
        tl.store(of_bias + head * SIZE + number, tl.sum(total, 0), number < SIZE)


# With 128 registers it would spill about 100 bytes, and with half as many rows a step it would have a third more
# instructions.
@partial(limited, registers=168, num_stages=2)
@triton.jit
def _products_key_gradient(
    maps, bias, grad, lse, mean, of_maps, sums, of_bias, H, W, dilation, heads, scale, stride,
    D: tl.constexpr, BLOCK_D: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of keys and values: the tile is of keys, and the loop goes through queries. Also of biases, from the sums."""
    scale = as_float32(scale)
    if HAS_BIAS:
        _add_sums(sums, of_bias, heads, (2 * K - 1) * (2 * K - 1))
    head, c = tl.program_id(1), tl.arange(0, BLOCK_D)[None, :]
    first, h, w, top, left = _tile(H, W, dilation)
    ky, kx = _pixels(top, left, 64, 8)
    inside, own = (ky < h) & (kx < w), first + (ky * W + kx) * dilation
    maps += head * D
    key = _read(maps + heads * D, own, stride, inside, c, D)
    value = _read(maps + 2 * heads * D, own, stride, inside, c, D)
    # A pixel less than K from an end is a neighbour of all those between.
    first_row, first_column = tl.where(top < K, 0, top - K // 2), tl.where(left < K, 0, left - K // 2)
    rows = tl.where(top + 7 >= h - K, h, top + 8 + K // 2) - first_row
    columns = tl.cdiv(tl.where(left + 7 >= w - K, w, left + 8 + K // 2) - first_column, 16)
    of_key = tl.zeros((64, BLOCK_D), tl.float32)
    of_value = tl.zeros((64, BLOCK_D), tl.float32)
    for step in range(tl.cdiv(rows, ROWS) * columns):
        row, column = first_row + step // columns * ROWS, first_column + step % columns * 16
        y, x = _pixels(row, column, 16 * ROWS, 16)
        there, at = (y < h) & (x < w), first + (y * W + x) * dilation
        query = _read(maps, at, stride, there, c, D)
        g = _read(grad + head * D, at, heads * D, there, c, D)
        norm = tl.load(lse + at * heads + head, there, float('inf'))
        middle = tl.load(mean + at * heads + head, there, 0.0)
        logits = _logits(query, key, y, x, ky, kx, h, w, bias, scale, K, HAS_BIAS)
        weight = tl.exp2(logits * LOG2E - norm[:, None])
        of_value = product(tl.trans(weight.to(g.dtype)), g, of_value)
        of_logit = weight * (product(g, tl.trans(value)) - middle[:, None])
        of_key = product(tl.trans(of_logit.to(g.dtype)), query, of_key)
    place, mask = of_maps + (own[:, None] * 3 * heads + head) * D + c, inside[:, None] & (c < D)
    tl.store(place + heads * D, of_key * scale, mask)
    tl.store(place + 2 * heads * D, of_value, mask)
