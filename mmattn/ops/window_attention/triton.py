"""Attention in windows on a GPU: one kernel forward, one backward, and one for the gradient of the table.

A program works on some windows of one head. It reads their pixels where the linear layer wrote them, and writes to
where the next one reads: padding, cyclic shift and windows are addresses. Logits and weights stay in registers, and the
backward pass computes them again. Sums are in float32, whatever the dtype of the map.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import as_float32, cdiv, launch, limited, next_power_of_2, operators, product
from ..library import rows_of

#: programs of a pass, if there are so many windows. Each of the backward pass writes sums for the table.
FORWARD, BACKWARD = 4096, 1024
#: logits of a window that a program works on at a time
LOGITS = 4096


def window_attention_triton(
    x: Tensor, table: Tensor, pad: Tensor | None, window_size: int, shift: int, shift_small_maps: bool, gauss: bool
) -> Tensor:
    """``window_attention_reference``."""
    return _operator(rows_of(x)[0], table.contiguous(), pad, window_size, shift, shift_small_maps, gauss)


def _attention(
    x: Tensor, table: Tensor, pad: Tensor | None, window_size: int, shift: int, small: bool, gauss: bool
) -> Tensor:
    out = x.new_empty(*x.shape[:3], x.shape[4])
    grid, numbers = _constants(x, table, pad, window_size, shift, small, gauss, FORWARD)
    launch(_windows, grid, x, table, pad, out, **numbers)
    return out


def _gradients(
    grad: Tensor, x: Tensor, table: Tensor, pad: Tensor | None, window_size: int, shift: int, small: bool, gauss: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the map, and in float32 of the table and of what padded pixels have."""
    grid, numbers = _constants(x, table, pad, window_size, shift, small, gauss, BACKWARD)
    heads, programs = grid
    of_x = x.new_empty(x.shape)
    of_table = table.new_empty(table.shape, dtype=torch.float32)
    sums = x.new_empty(programs, heads, window_size**4, dtype=torch.float32)
    of_pad = x.new_empty(0 if pad is None else programs, *x.shape[3:], dtype=torch.float32)
    columns = numbers['COLUMNS']
    backward = _gradient_by_size[columns == numbers['ROWS']]
    launch(backward, grid, x, table, pad, grad.contiguous(), of_x, sums, of_pad, **numbers)
    settings = dict(programs=programs, heads=heads, WIN=window_size, ROWS=max(1, 2048 // columns), COLUMNS=columns)
    launch(_windows_bias_gradient, (table.shape[0], heads), sums, of_table, **settings)
    return of_x, of_table, of_pad if pad is None else of_pad.sum(0).flatten()


def _setup(ctx, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.window_size, ctx.shift, ctx.small, ctx.gauss = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    _, table, pad = ctx.saved_tensors
    settings = ctx.window_size, ctx.shift, ctx.small, ctx.gauss
    of_x, of_table, of_pad = _gradient_operator(grad, *ctx.saved_tensors, *settings)
    return of_x, of_table.to(table.dtype), None if pad is None else of_pad.to(pad.dtype), *[None] * len(settings)


_operator, _gradient_operator = operators('window_attention', _attention, _setup, _differentiate, _gradients)


def _constants(
    x: Tensor, table: Tensor, pad: Tensor | None, w: int, shift: int, small: bool, gauss: bool, programs: int
) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid, heads and programs for each, and the arguments that both passes have."""
    B, H, W, parts, C = x.shape
    heads, windows = table.shape[1], B * cdiv(H, w) * cdiv(W, w)
    d, share = C // heads, 1 + windows * heads // programs
    columns = max(16, next_power_of_2(w * w))
    return (heads, cdiv(windows, share)), dict(
        **dict(stride=x.stride(2), windows=windows, share=share, H=H, W=W, heads=heads, shift=shift, scale=d**-0.5),
        **dict(D=d, WIN=w, PARTS=parts, GAUSS=gauss, SHIFTED=shift > 0, SMALL=small, PADDED=pad is not None),
        **dict(ROWS=min(columns, LOGITS // columns), COLUMNS=columns, BLOCK_D=max(16, next_power_of_2(d))),
    )


@triton.jit
def _place(n, first, H, W, shift, WIN: tl.constexpr, SMALL: tl.constexpr, COUNT: tl.constexpr):
    """COUNT pixels of window n from one on: their numbers in the batch, which of them are in the map, and their regions
    of the shifted map."""
    i, down, across = first + tl.arange(0, COUNT), tl.cdiv(H, WIN), tl.cdiv(W, WIN)
    y, x = n // across % down * WIN + i // WIN, n % across * WIN + i % WIN
    by_y = shift if SMALL else tl.where(down > 1, shift, 0)
    by_x = shift if SMALL else tl.where(across > 1, shift, 0)
    region = tl.where(y >= down * WIN - by_y, 2, 0) + tl.where(x >= across * WIN - by_x, 1, 0)
    y, x = (y + by_y) % (down * WIN), (x + by_x) % (across * WIN)
    inside = (i < WIN * WIN) & (y < H) & (x < W)
    return ((n // across // down).to(tl.int64) * H + y) * W + x, inside, region


@triton.jit
def _read(x, pad, pixel, inside, place, c, stride, D: tl.constexpr, PADDED: tl.constexpr):
    """Channels c of a head, from a place on, of pixels."""
    other = tl.load(pad + place + c, c < D, 0.0).to(x.dtype.element_ty)[None, :] if PADDED else 0.0
    return tl.load(x + pixel[:, None] * stride + (place + c)[None, :], inside[:, None] & (c < D)[None, :], other)


@triton.jit
def _bias(table, first, head, heads, WIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Biases of ROWS pixels of a window from the first on, to all; minus infinity where there are none. In base 2."""
    i, j = tl.minimum(first + tl.arange(0, ROWS), WIN * WIN - 1), tl.arange(0, COLUMNS)
    # Numbers of pixels in rows of 2 * WIN - 1: their differences are the numbers of relative positions.
    place = (i // WIN * (2 * WIN - 1) + i % WIN)[:, None] - (j // WIN * (2 * WIN - 1) + j % WIN)[None, :]
    place = (place + 2 * WIN * (WIN - 1)) * heads + head
    bias = tl.load(table + place, (j < WIN * WIN)[None, :], float('-inf')).to(tl.float32)
    return bias * 1.4426950408889634


@triton.jit
def _weights(query, key, bias, own, region, scale, GAUSS: tl.constexpr, SHIFTED: tl.constexpr):
    """The softmax of some pixels over all of a window, in the dtype of the map."""
    logits = product(query, tl.trans(key))
    if GAUSS:
        exact = key.to(tl.float32)
        logits -= 0.5 * tl.sum(exact * exact, 1)[None, :]
    logits = logits * (scale * 1.4426950408889634) + bias
    if SHIFTED:
        logits += tl.where(own[:, None] == region[None, :], 0.0, -144.26950408889634)
    weights = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return (weights / tl.sum(weights, 1)[:, None]).to(key.dtype)


# Biases, logits and weights of a window take 32 registers each. With 168, three programs fit on a multiprocessor.
@partial(limited, registers=168)
@triton.jit
def _windows(
    x, table, pad, out, stride, windows, share, H, W, heads, shift, scale,
    D: tl.constexpr, WIN: tl.constexpr, PARTS: tl.constexpr, GAUSS: tl.constexpr, SHIFTED: tl.constexpr,
    SMALL: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    scale = as_float32(scale)
    head, first, c = tl.program_id(0), tl.program_id(1) * share, tl.arange(0, BLOCK_D)
    place, part = head * D, heads * D
    whole = _bias(table, 0, head, heads, WIN, ROWS, COLUMNS)
    for n in range(first, tl.minimum(first + share, windows)):
        pixel, inside, region = _place(n, 0, H, W, shift, WIN, SMALL, COLUMNS)
        key = _read(x, pad, pixel, inside, place + part, c, stride, D, PADDED)
        value = _read(x, pad, pixel, inside, place + 2 * part, c, stride, D, PADDED)
        for top in range(0, WIN * WIN, ROWS):
            bias = whole if WIN * WIN <= ROWS else _bias(table, top, head, heads, WIN, ROWS, COLUMNS)
            own, there, near = _place(n, top, H, W, shift, WIN, SMALL, ROWS)
            query = _read(x, pad, own, there, place, c, stride, D, PADDED)
            total = product(_weights(query, key, bias, near, region, scale, GAUSS, SHIFTED), value)
            if PARTS == 4:
                total -= _read(x, pad, own, there, place + 3 * part, c, stride, D, False).to(tl.float32)
            tl.store(out + own[:, None] * part + (place + c)[None, :], total, there[:, None] & (c < D)[None, :])


@triton.jit
def _windows_gradient(
    x, table, pad, grad, of_x, sums, of_pad, stride, windows, share, H, W, heads, shift, scale,
    D: tl.constexpr, WIN: tl.constexpr, PARTS: tl.constexpr, GAUSS: tl.constexpr, SHIFTED: tl.constexpr,
    SMALL: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """sums: of the gradients of the logits over the windows of each program, for each head and pair of pixels."""
    scale = as_float32(scale)
    head, first, c = tl.program_id(0), tl.program_id(1) * share, tl.arange(0, BLOCK_D)
    place, part = head * D, heads * D
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    sums += (tl.program_id(1) * heads + head) * (WIN * WIN * WIN * WIN)
    whole = _bias(table, 0, head, heads, WIN, ROWS, COLUMNS)
    by_pair = tl.zeros((ROWS, COLUMNS), tl.float32)
    pad_key, pad_value = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    for n in range(first, tl.minimum(first + share, windows)):
        pixel, inside, region = _place(n, 0, H, W, shift, WIN, SMALL, COLUMNS)
        key = _read(x, pad, pixel, inside, place + part, c, stride, D, PADDED)
        value = _read(x, pad, pixel, inside, place + 2 * part, c, stride, D, PADDED)
        of_key, of_value = tl.zeros((COLUMNS, BLOCK_D), tl.float32), tl.zeros((COLUMNS, BLOCK_D), tl.float32)
        for top in range(0, WIN * WIN, ROWS):
            bias = whole if WIN * WIN <= ROWS else _bias(table, top, head, heads, WIN, ROWS, COLUMNS)
            own, there, near = _place(n, top, H, W, shift, WIN, SMALL, ROWS)
            query = _read(x, pad, own, there, place, c, stride, D, PADDED)
            g = _read(grad, pad, own, there, place, c, part, D, False)
            weights = _weights(query, key, bias, near, region, scale, GAUSS, SHIFTED)
            of_value = product(tl.trans(weights), g, of_value)
            weights, of_weights = weights.to(tl.float32), product(g, tl.trans(value))
            of_logits = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None])
            if WIN * WIN <= ROWS:
                by_pair += of_logits
            else:
                pair, exists = sums + (top + i) * (WIN * WIN) + j, (top + i < WIN * WIN) & (j < WIN * WIN)
                tl.store(pair, of_logits + tl.load(pair, exists & (n > first), 0.0), exists)
                tl.debug_barrier()  # other threads may load them for the next window
            if GAUSS:
                of_key -= tl.sum(of_logits, 0)[:, None] * key.to(tl.float32)
            of_logits = of_logits.to(query.dtype)
            of_key = product(tl.trans(of_logits), query, of_key)
            to, mask = of_x + own[:, None] * (PARTS * part) + (place + c)[None, :], there[:, None] & (c < D)[None, :]
            tl.store(to, scale * product(of_logits, key), mask)
            if PARTS == 4:
                tl.store(to + 3 * part, -g.to(tl.float32), mask)
        if PADDED:
            pad_key += tl.sum(tl.where(inside[:, None], 0.0, of_key), 0)
            pad_value += tl.sum(tl.where(inside[:, None], 0.0, of_value), 0)
        to, mask = of_x + pixel[:, None] * (PARTS * part) + (place + c)[None, :], inside[:, None] & (c < D)[None, :]
        tl.store(to + part, scale * of_key, mask)
        tl.store(to + 2 * part, of_value, mask)
    if WIN * WIN <= ROWS:
        tl.store(sums + i * (WIN * WIN) + j, by_pair, (i < WIN * WIN) & (j < WIN * WIN))
    if PADDED:
        for k in tl.static_range(PARTS):
            of_part = scale * pad_key if k == 1 else pad_value if k == 2 else tl.zeros((BLOCK_D,), tl.float32)
            tl.store(of_pad + (tl.program_id(1) * PARTS + k) * part + place + c, of_part, c < D)


#: for windows that are worked on at once, where also gradients and their sums take 32 registers each, and for others
_gradient_by_size = {True: limited(_windows_gradient, registers=168), False: limited(_windows_gradient, num_warps=8)}


@limited
@triton.jit
def _windows_bias_gradient(
    sums, of_table, programs, heads, WIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The sum over all pairs of pixels of one relative position, and all programs."""
    position, head, i = tl.program_id(0), tl.program_id(1), tl.arange(0, COLUMNS)
    y, x = i // WIN - position // (2 * WIN - 1) + WIN - 1, i % WIN - position % (2 * WIN - 1) + WIN - 1
    exists = (i < WIN * WIN) & (y >= 0) & (y < WIN) & (x >= 0) & (x < WIN)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, programs, ROWS):
        n = first + tl.arange(0, ROWS)[:, None]
        place = ((n * heads + head) * (WIN * WIN) + i[None, :]) * (WIN * WIN) + (y * WIN + x)[None, :]
        total += tl.load(sums + place, (n < programs) & exists[None, :], 0.0)
    tl.store(of_table + position * heads + head, tl.sum(tl.sum(total, 1), 0))
