"""GSA's attention along lines on a GPU. No scores are in memory, and maps are read where they are.

For one position y of a line, the scores of all lines are one product with a slice of the table, S[line, i] =
Q[line, y] . R[i - y], so nothing is shifted. A program has ``LINES`` lines, which are neighbours in memory, and
``SIDE`` positions. It goes through the positions within reach, and makes two products on tensor cores for as many at a
time: one for each position, for scores, which are then rounded to the dtype of the maps, and one for each line. Sums
are in float32.

Beyond the reach, scores are zero. Zero times NaN or infinity is NaN, so that these reach up to 15 positions further.

Float16 has few exponents. There, what is multiplied is first divided by powers of two, which do not round it, and sums
are multiplied by them. Each line of a tile has its own. Where a sum runs over tiles, it grows, and the sum so far is
adapted, as in FlashAttention. So samples do not affect each other, and results may be float32, too large for float16.
"""

from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import as_float32, cdiv, launch, next_power_of_2, operators, product
from ..library import rows_of
from .triton_content import products

#: lines and positions of a program, and positions that it works on at a time
LINES, SIDE = tl.constexpr(16), tl.constexpr(16)
#: programs that sum over lines for the table's gradient
PROGRAMS = 2048
#: the least number that float16 is divided by
LEAST = tl.constexpr(2.0**-100)


def axial_attention_triton(
    query: Tensor,
    value: Tensor,
    table: Tensor,
    dim: int,
    context: Tensor | None = None,
    norm: tuple[Tensor, Tensor, Tensor, Tensor, float] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``axial_attention_reference`` without keys and softmax. Pixels beyond the table do not attend to each other.

    Args:
        context: (B, heads, k, v), whose product with the queries is added, or None.
        norm: mean, variance, weight, bias, (heads * v) each, and epsilon of a batch norm in inference that is applied
            to the result, or None. It has no gradients.
        dtype: of the result; None: that of the value.
    """
    context = None if context is None else context.contiguous()
    maps = rows_of(query)[0], rows_of(value)[0]
    return _operator(*maps, table, context, *(norm or (None,) * 5), dim, dtype or value.dtype)[0]


def along_lines(
    query: Tensor,
    value: Tensor,
    table: Tensor,
    context: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    dim: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The result, and the table in the dtype of the query."""
    out = torch.empty_like(value, dtype=dtype, memory_format=torch.contiguous_format)
    table = table.to(query.dtype, copy=True, memory_format=torch.contiguous_format)
    constants, tiles = _constants(query, value, table, dim)
    launch(
        _axial, (prod(tiles),), query, value, table, context, mean, var, weight, bias, out,
        0.0 if eps is None else eps, HAS_CONTEXT=context is not None, HAS_NORM=mean is not None, **constants,
    )  # fmt: skip
    return out, table


def _gradients(
    grad: Tensor, query: Tensor, value: Tensor, table: Tensor, context: Tensor | None, dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, value, table, in float32, and context. The table is in the dtype of the query."""
    of_maps = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, value)]
    return *of_maps, *write_gradients(grad, query, value, table, context, dim, *of_maps)


def write_gradients(
    grad: Tensor, query: Tensor, value: Tensor, table: Tensor, context: Tensor | None, dim: int, of_query: Tensor,
    of_value: Tensor, adds: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``_gradients``. Those of query and value are written to maps whose pixels have a common stride, or added to what
    is there. Those of table and context are returned."""
    grad = grad.contiguous()
    constants, tiles = _constants(query, value, table, dim)
    has, target = dict(HAS_CONTEXT=context is not None), dict(constants, ADDS=adds)
    stride, grid = of_query.stride(2), (prod(tiles),)
    launch(_axial_query_gradient, grid, value, table, context, grad, of_query, stride, **has, **target)
    launch(_axial_value_gradient, grid, query, table, grad, of_value, of_value.stride(2), **target)
    diagonals = 2 * cdiv(len(table) // 2, SIDE.value) + 1
    share = max(1, cdiv(tiles[0] * diagonals, PROGRAMS))
    parts = cdiv(tiles[0], share)
    sums = grad.new_empty(parts, SIDE.value, *table.shape, dtype=torch.float32)
    launch(_axial_table_gradient, (diagonals, parts), query, value, grad, sums, share, **constants)
    of_context = grad.new_empty(0) if context is None else products(query, grad)
    return sums.sum((0, 1)), of_context


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    query, value, table, context, *_, ctx.dim, _ = inputs
    ctx.save_for_backward(query, value, output[1], context)
    ctx.set_materialize_grads(False)  # the second output has none
    ctx.dtypes = table.dtype, None if context is None else context.dtype


def _differentiate(ctx, grad: Tensor, _) -> tuple[Tensor | None, ...]:
    *of_maps, of_table, of_context = _gradient_operator(grad, *ctx.saved_tensors, ctx.dim)
    table, context = ctx.dtypes
    return *of_maps, of_table.to(table), None if context is None else of_context.to(context), *[None] * 7


_operator, _gradient_operator = operators('axial', along_lines, _setup, _differentiate, _gradients)


def _constants(query: Tensor, value: Tensor, table: Tensor, dim: int) -> tuple[dict[str, int], tuple[int, int]]:
    """Arguments that all kernels have, and numbers of tiles: of lines and of positions."""
    B, _, W, heads, K = query.shape
    length, others, V = query.shape[dim], query.shape[3 - dim], value.shape[-1]
    along, across = (W, 1) if dim == 1 else (1, W)
    lines, D = B * others * heads, max(16, next_power_of_2(max(K, V)))
    constants = dict(q_stride=query.stride(2), v_stride=value.stride(2), along=along, across=across, lines=lines)
    constants.update(others=others, heads=heads, length=length, reach=len(table) // 2, K=K, V=V, D=D)
    fits = query.dtype == torch.float16
    warps = min(16, D // 2) if fits else D // 4  # at most 128 registers
    constants.update(FITS=fits, num_warps=warps, num_stages=2 if warps < 16 else 1)
    return constants, (cdiv(lines, LINES.value), cdiv(length, SIDE.value))


@triton.jit
def _tiles(length):
    """A program's tile of lines, and its first position. Programs of the same lines follow each other, and so read them
    from the cache."""
    along = tl.cdiv(length, SIDE)
    return tl.program_id(0) // along, tl.program_id(0) % along * SIDE


@triton.jit
def _lines(tile, lines, others, heads, across, length):
    """Of a tile of lines: the numbers of their first pixels, their heads, and which lines exist."""
    line = tile * LINES + tl.arange(0, LINES)
    other = line // heads
    return (other // others).to(tl.int64) * others * length + other % others * across, line % heads, line < lines


@triton.jit
def _place(pixel, head, there, start, c, length, stride, along, WIDTH: tl.constexpr):
    """Where channels c of positions from ``start`` on are, (lines, positions, channels), and which exist."""
    first = pixel * stride + head * WIDTH + tl.cast(start, tl.int64) * along * stride
    t, c = tl.arange(0, SIDE)[:, None], c[None, :]
    inside = (start + t < length) & (c < WIDTH)
    return first[:, None, None] + (t * along * stride + c)[None, :, :], there[:, None, None] & inside[None, :, :]


@triton.jit
def _read(x, pixel, head, there, start, c, length, stride, along, WIDTH: tl.constexpr):
    place, exist = _place(pixel, head, there, start, c, length, stride, along, WIDTH)
    return tl.load(x + place, exist, 0.0)


@triton.jit
def _write(x, values, pixel, head, there, start, c, length, stride, along, WIDTH: tl.constexpr):
    place, exist = _place(pixel, head, there, start, c, length, stride, along, WIDTH)
    tl.store(x + place, values, exist)


@triton.jit
def _largest(x):
    """The smallest powers of two that are not below the numbers of each line; 1 for infinity and NaN."""
    top = tl.max(tl.max(tl.abs(x), 1), 1)  # over channels first, programs would spill registers
    top = tl.where(top < float('inf'), tl.minimum(tl.maximum(top, LEAST), 1 / LEAST), 1.0)
    return ((top.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def _fit(x, top):
    """Maps (lines, positions, channels) as float16, divided by ``top`` or more; that divisor, (lines); and what a sum
    so far is multiplied by."""
    x = x.to(tl.float32)
    before, top = top, tl.maximum(_largest(x), top)
    return (x * (1 / top)[:, None, None]).to(tl.float16), top, before / top


@triton.jit
def _slice(table, y, i, reach, K: tl.constexpr, D: tl.constexpr):
    """R[i - y] of positions from y and from i on, (y, i, channels), zero beyond the reach."""
    t, c = tl.arange(0, SIDE), tl.arange(0, D)[None, None, :]
    row = (i + t)[None, :] - (y + t)[:, None] + reach
    inside = (row >= 0) & (row <= 2 * reach)
    return tl.load(table + row[:, :, None] * K + c, inside[:, :, None] & (c < K), 0.0)


@triton.jit
def _times_context(
    x, context, total, pixel, head, there, y, length, others, heads, stride, along,
    unit, top, WIDTH: tl.constexpr, K: tl.constexpr, V: tl.constexpr, D: tl.constexpr, TRANSPOSED: tl.constexpr,
    FITS: tl.constexpr,
):  # fmt: skip
    """Adds the product of maps x, some channels at a time, with the contexts of the lines' images and heads."""
    number = pixel // (others * length) * heads + head
    c = tl.arange(0, D)[None, :]
    for start in range(0, WIDTH, SIDE):
        some = start + tl.arange(0, SIDE)
        if TRANSPOSED:
            place, inside = c * V + some[:, None], (some < V)[:, None] & (c < K)
        else:
            place, inside = some[:, None] * V + c, (some < K)[:, None] & (c < V)
        exist = there[:, None, None] & inside[None, :, :]
        matrix = tl.load(context + number[:, None, None] * (K * V) + place[None, :, :], exist, 0.0)
        part = _read(x, pixel, head, there, y, some, length, stride, along, WIDTH)
        if FITS:
            part = (part.to(tl.float32) * (1 / unit)[:, None, None]).to(tl.float16)
            matrix, top, shrink = _fit(matrix, top)
            total *= shrink[:, None, None]
        total = product(part, matrix.to(part.dtype), total)
    return total, top


@triton.jit
def _axial(
    query, value, table, context, mean, var, weight, bias, out, eps, q_stride, v_stride, along, across, lines, others,
    heads, length, reach, K: tl.constexpr, V: tl.constexpr, D: tl.constexpr,
    HAS_CONTEXT: tl.constexpr, HAS_NORM: tl.constexpr, FITS: tl.constexpr,
):  # fmt: skip
    tile, y = _tiles(length)
    c = tl.arange(0, D)
    pixel, head, there = _lines(tile, lines, others, heads, across, length)
    q = _read(query, pixel, head, there, y, c, length, q_stride, along, K)
    top = tl.full((LINES,), LEAST, tl.float32)
    unit = top
    if FITS:
        q, unit, _ = _fit(q, LEAST)
    q = tl.permute(q, (1, 0, 2))
    total = tl.zeros((LINES, SIDE, D), tl.float32)
    if HAS_CONTEXT:
        total, top = _times_context(
            query, context, total, pixel, head, there, y, length, others, heads, q_stride, along, unit, top,
            K, K, V, D, False, FITS,
        )  # fmt: skip
    for i in range(tl.maximum(y - reach, 0) // SIDE * SIDE, tl.minimum(y + SIDE + reach, length), SIDE):
        r = _slice(table, y, i, reach, K, D)
        s = product(q, tl.permute(r, (0, 2, 1))).to(q.dtype)  # (y, lines, i)
        v = _read(value, pixel, head, there, i, c, length, v_stride, along, V)
        if FITS:
            v, top, shrink = _fit(v, top)
            total *= shrink[:, None, None]
        total = product(tl.permute(s, (1, 0, 2)), v, total)
    if FITS:
        total *= (unit * top)[:, None, None]
    if HAS_NORM:
        channel, inside = head[:, None] * V + c[None, :], there[:, None] & (c < V)[None, :]
        scale = tl.load(weight + channel, inside, 0.0).to(tl.float32)
        scale /= tl.sqrt(tl.load(var + channel, inside, 1.0).to(tl.float32) + as_float32(eps))
        offset = tl.load(bias + channel, inside, 0.0).to(tl.float32)
        offset -= tl.load(mean + channel, inside, 0.0).to(tl.float32) * scale
        total = total * scale[:, None, :] + offset[:, None, :]
    _write(out, total, pixel, head, there, y, c, length, heads * V, along, V)


@triton.jit
def _axial_query_gradient(
    value, table, context, grad, out, out_stride, q_stride, v_stride, along, across, lines, others, heads, length,
    reach, K: tl.constexpr, V: tl.constexpr, D: tl.constexpr, HAS_CONTEXT: tl.constexpr, FITS: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """The sum of (dY[line, y] . V[line, i]) R[i - y] over i."""
    tile, y = _tiles(length)
    c = tl.arange(0, D)
    pixel, head, there = _lines(tile, lines, others, heads, across, length)
    g = _read(grad, pixel, head, there, y, c, length, heads * V, along, V)
    top = tl.full((LINES,), LEAST, tl.float32)
    unit = top
    if FITS:
        g, unit, _ = _fit(g, LEAST)
    total = tl.zeros((LINES, SIDE, D), tl.float32)
    if HAS_CONTEXT:
        total, top = _times_context(
            grad, context, total, pixel, head, there, y, length, others, heads, heads * V, along, unit, top,
            V, K, V, D, True, FITS,
        )  # fmt: skip
    total = tl.permute(total, (1, 0, 2))
    for i in range(tl.maximum(y - reach, 0) // SIDE * SIDE, tl.minimum(y + SIDE + reach, length), SIDE):
        v = _read(value, pixel, head, there, i, c, length, v_stride, along, V)
        if FITS:
            v, top, shrink = _fit(v, top)
            total *= shrink[None, :, None]
        s = product(g, tl.permute(v, (0, 2, 1))).to(g.dtype)  # (lines, y, i)
        total = product(tl.permute(s, (1, 0, 2)), _slice(table, y, i, reach, K, D), total)
    total = tl.permute(total, (1, 0, 2))
    if FITS:
        total *= (unit * top)[:, None, None]
    if ADDS:
        total += _read(out, pixel, head, there, y, c, length, out_stride, along, K).to(tl.float32)
    _write(out, total, pixel, head, there, y, c, length, out_stride, along, K)


@triton.jit
def _axial_value_gradient(
    query, table, grad, out, out_stride, q_stride, v_stride, along, across, lines, others, heads, length, reach,
    K: tl.constexpr, V: tl.constexpr, D: tl.constexpr, FITS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """The sum of (Q[line, y] . R[i - y]) dY[line, y] over y."""
    tile, i = _tiles(length)
    c = tl.arange(0, D)
    pixel, head, there = _lines(tile, lines, others, heads, across, length)
    total, top = tl.zeros((LINES, SIDE, D), tl.float32), tl.full((LINES,), LEAST, tl.float32)
    for y in range(tl.maximum(i - reach, 0) // SIDE * SIDE, tl.minimum(i + SIDE + reach, length), SIDE):
        q = _read(query, pixel, head, there, y, c, length, q_stride, along, K)
        if FITS:
            q, unit, _ = _fit(q, LEAST)
        r = tl.permute(_slice(table, y, i, reach, K, D), (0, 2, 1))
        s = product(tl.permute(q, (1, 0, 2)), r).to(q.dtype)  # (y, lines, i)
        g = _read(grad, pixel, head, there, y, c, length, heads * V, along, V)
        if FITS:
            g, top, shrink = _fit(g * unit[:, None, None], top)
            total *= shrink[:, None, None]
        total = product(tl.permute(s, (1, 2, 0)), g, total)
    if FITS:
        total *= top[:, None, None]
    if ADDS:
        total += _read(out, pixel, head, there, i, c, length, out_stride, along, V).to(tl.float32)
    _write(out, total, pixel, head, there, i, c, length, out_stride, along, V)


@triton.jit
def _axial_table_gradient(
    query, value, grad, sums, share, q_stride, v_stride, along, across, lines, others, heads, length, reach,
    K: tl.constexpr, V: tl.constexpr, D: tl.constexpr, FITS: tl.constexpr,
):  # fmt: skip
    """The sum of (dY[line, y] . V[line, i]) Q[line, y], of ``share`` tiles of lines. Pairs of tiles of positions y and
    i that are as far apart have the same i - y, so a program adds them up. For each place of y in its tile, no two
    programs of a part have the same i - y: sums are (parts, SIDE, 2 reach + 1, K)."""
    part, shift = tl.program_id(1), (tl.program_id(0) - tl.num_programs(0) // 2) * SIDE
    pairs, c = tl.maximum(tl.cdiv(length, SIDE) - tl.abs(shift) // SIDE, 0), tl.arange(0, D)
    total, top = tl.zeros((SIDE, SIDE, D), tl.float32), LEAST
    for number in range(pairs * tl.minimum(share, tl.cdiv(lines, LINES) - part * share)):
        y = number % pairs * SIDE + tl.maximum(-shift, 0)
        pixel, head, there = _lines(part * share + number // pairs, lines, others, heads, across, length)
        g = _read(grad, pixel, head, there, y, c, length, heads * V, along, V)
        if FITS:
            g, unit, _ = _fit(g, LEAST)
        v = _read(value, pixel, head, there, y + shift, c, length, v_stride, along, V)
        if FITS:
            v, of_v, _ = _fit(v, LEAST)
            unit *= of_v
        s = product(g, tl.permute(v, (0, 2, 1)))  # (lines, y, i)
        q = _read(query, pixel, head, there, y, c, length, q_stride, along, K)
        if FITS:
            q, of_q, _ = _fit(q, LEAST)
            s *= (unit * of_q)[:, None, None]
            before, top = top, tl.maximum(top, tl.max(_largest(s), 0))  # the sum runs over lines
            s *= 1 / top
            total *= before / top
        total = product(tl.permute(s.to(q.dtype), (1, 2, 0)), tl.permute(q, (1, 0, 2)), total)
    if FITS:
        total *= top
    t, c = tl.arange(0, SIDE), c[None, None, :]
    row = shift + t[None, :] - t[:, None] + reach
    inside = (row >= 0) & (row <= 2 * reach)
    at = (part.to(tl.int64) * SIDE + t[:, None]) * (2 * reach + 1) + row
    tl.store(sums + at[:, :, None] * K + c, total, inside[:, :, None] & (c < K))
