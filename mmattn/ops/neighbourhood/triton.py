"""Neighbourhood attention on a GPU. Only the gradient of the bias needs attention weights in memory, in float32.

A program works on a tile of the pixels of one head, 8 columns wide, and goes through their neighbours one by one, or
through the queries that its pixels are neighbours of. Sums are in float32, whatever the dtype of the maps.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..derivatives import once
from ..gpu import as_float32, cdiv, limited, next_power_of_2
from ..tracing import kept
from .cpp import continued
from .reference import beyond_of

#: numbers of a map that a program works on
BLOCK_SIZE = 1024


def neighbourhood_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    beyond: Tensor | None,
    kernel_size: int,
    dilation: int,
) -> Tensor:
    """``neighbourhood_attention_reference`` without dropout."""
    H, W = (max(size, kernel_size * dilation) for size in query.shape[1:3])
    if query.shape[1:3] != (H, W):
        key, value = (continued(x, pixel, H, W) for x, pixel in zip((key, value), beyond_of(beyond)))
    return _Attention.apply(query, key, value, bias, kernel_size, dilation).to(value.dtype)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, kernel_size: int, dilation: int
    ) -> Tensor:
        ctx.numbers = kernel_size, dilation
        B, H, W, heads, _ = query.shape
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        lse = query.new_empty(B, H, W, heads, dtype=torch.float32)
        maps, constants = _constants(query, key, value, bias, *ctx.numbers)
        _neighbourhood[_grid(query, constants)](*maps, out, lse, **constants)
        ctx.save_for_backward(query, key, value, bias, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(grad.contiguous(), *ctx.saved_tensors, *ctx.numbers), None, None


@once
def _gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    k: int,
    dilation: int,
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value and bias."""
    B, H, W, heads, _ = query.shape
    maps, constants = _constants(query, key, value, bias, k, dilation)
    mean = torch.empty_like(lse)  # of the gradients of a query's weights
    of_query, of_key, of_value = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
    )
    of_logits = grad.new_empty((0,) if bias is None else (B, heads, k, k, H, W), dtype=torch.float32)
    _neighbourhood_query_gradient[_grid(query, constants)](
        *maps, out, grad, lse, mean, of_query, of_logits, **constants
    )
    _neighbourhood_key_gradient[_grid(key, constants)](*maps, grad, lse, mean, of_key, of_value, **constants)
    if bias is None:
        return of_query, of_key, of_value, None
    sizes = (H, key.shape[1]), (W, key.shape[2])
    rows, columns = (kept(_relative, grad, *size, k, dilation) for size in sizes)  # 130 KB for a side of 334 pixels
    of_logits = of_logits.sum(0)
    bad = of_logits - of_logits != 0  # the difference of infinities is NaN
    # A product with a zero of `rows` would spread NaN and infinity: they are summed apart, and put where they belong.
    both = torch.stack((of_logits.masked_fill(bad, 0), bad.float()), 1)
    of_bias, reached = torch.einsum('nmajw,wjb->mnab', torch.einsum('nmijhw,hia->nmajw', both, rows), columns)
    of_bias = of_bias.masked_fill(reached > 0, float('nan'))
    return of_query, of_key, of_value, of_bias.to(bias.dtype)


def _relative(size: int, whole: int, k: int, dilation: int, device: torch.device) -> Tensor:
    """(size, k, 2k - 1): 1 at the relative position of each neighbour of the pixels of an axis of ``whole`` keys."""
    pixel = torch.arange(size, device=device)
    place, length = pixel // dilation, (whole - 1 - pixel % dilation) // dilation + 1
    start = torch.minimum((place - k // 2).clamp(min=0), length - k)
    steps = (start - place + k - 1)[:, None] + torch.arange(k, device=device)
    return torch.nn.functional.one_hot(steps, 2 * k - 1).float()


def _constants(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, k: int, dilation: int
) -> tuple[list[Tensor], dict]:
    """The maps as rows of pixels, without a copy of a part of a fused projection, and the arguments of the kernels."""
    B, H, W, heads, d = query.shape
    maps = [x.flatten(-2).reshape(-1, heads * d) for x in (query, key, value)]
    # The rows of a single image may be a view, in which channels are not neighbours.
    maps = [x if x.stride(1) == 1 else x.contiguous() for x in maps]
    block_d = next_power_of_2(d)
    numbers = dict(H=H, W=W, KH=key.shape[1], KW=key.shape[2], heads=heads, dilation=dilation, scale=d**-0.5)
    numbers.update(zip(('query_stride', 'key_stride', 'value_stride'), (x.stride(0) for x in maps)))
    constants = dict(D=d, K=k, HAS_BIAS=bias is not None, BLOCK=max(BLOCK_SIZE // block_d, 8), BLOCK_D=block_d)
    return [*maps, maps[0] if bias is None else bias.contiguous()], numbers | constants


def _grid(x: Tensor, constants: dict) -> tuple[int, int]:
    B, H, W, heads, _ = x.shape
    return B * cdiv(H, constants['BLOCK'] // 8) * cdiv(W, 8), heads


@triton.jit
def _pixels(H, W, BLOCK: tl.constexpr):
    """Image, rows and columns of a program's tile of pixels, 8 columns wide, and whether they are in the map."""
    tile, i = tl.program_id(0), tl.arange(0, BLOCK)
    across, down = tl.cdiv(W, 8), tl.cdiv(H, BLOCK // 8)
    y, x = tile // across % down * (BLOCK // 8) + i // 8, tile % across * 8 + i % 8
    return (tile // across // down).to(tl.int64), y, x, (y < H) & (x < W)


@triton.jit
def _window(pixel, size, dilation, K: tl.constexpr):
    """The first neighbour, and its number among 2K - 1 relative positions."""
    place, length = pixel // dilation, (size - 1 - pixel % dilation) // dilation + 1
    start = tl.minimum(tl.maximum(place - K // 2, 0), length - K)
    return start * dilation + pixel % dilation, start - place + K - 1


@triton.jit
def _queries(pixel, size, queries, dilation, K: tl.constexpr):
    """The first query that a key is a neighbour of, the number of such queries, and the key's number for the first."""
    line, place = pixel % dilation, pixel // dilation
    length = (size - 1 - line) // dilation + 1
    first = tl.where(place < K, 0, place - K // 2)
    last = tl.where(place >= length - K, length - 1, place + K // 2)
    last = tl.minimum(last, (queries - 1 - line + dilation) // dilation - 1)
    return first * dilation + line, last - first + 1, place - first + K - 1


@limited
@triton.jit
def _neighbourhood(
    query, key, value, bias, out, lse, H, W, KH, KW, heads, dilation, scale, query_stride, key_stride, value_stride,
    D: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    scale = as_float32(scale)
    b, y, x, inside = _pixels(H, W, BLOCK)
    c, head = tl.arange(0, BLOCK_D)[None, :], tl.program_id(1)
    mask, of_head = inside[:, None] & (c < D), head * D + c
    own = (b * H + y) * W + x
    q = tl.load(query + own[:, None] * query_stride + of_head, mask, 0.0).to(tl.float32) * scale
    first_y, row = _window(y, KH, dilation, K)
    first_x, column = _window(x, KW, dilation, K)
    top = tl.full((BLOCK,), float('-inf'), tl.float32)
    weights = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for i in range(K):
        for j in range(K):
            there = ((b * KH + first_y + i * dilation) * KW + first_x + j * dilation)[:, None]
            k = tl.load(key + there * key_stride + of_head, mask, 0.0).to(tl.float32)
            logit = tl.sum(q * k, 1)
            if HAS_BIAS:
                place = (head * (2 * K - 1) + row + i) * (2 * K - 1) + column + j
                logit += tl.load(bias + place, inside, 0.0).to(tl.float32)
            v = tl.load(value + there * value_stride + of_head, mask, 0.0).to(tl.float32)
            # Triton 2.1 cannot compile tl.maximum(top, logit) here.
            larger = tl.max(tl.where(tl.arange(0, 2)[None, :] == 0, top[:, None], logit[:, None]), 1)
            base = tl.where(larger == float('-inf'), 0.0, larger)  # as long as all logits are minus infinity
            shrink, weight = tl.exp(top - base), tl.exp(logit - base)
            weights = weights * shrink + weight
            total = total * shrink[:, None] + weight[:, None] * v
            top = larger
    tl.store(out + own[:, None] * heads * D + of_head, total / weights[:, None], mask)
    tl.store(lse + own * heads + head, top + tl.log(weights), inside)


@partial(limited, registers=80)
@triton.jit
def _neighbourhood_query_gradient(
    query, key, value, bias, out, grad, lse, mean, of_query, of_logits, H, W, KH, KW, heads, dilation, scale,
    query_stride, key_stride, value_stride,
    D: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    scale = as_float32(scale)
    b, y, x, inside = _pixels(H, W, BLOCK)
    c, head = tl.arange(0, BLOCK_D)[None, :], tl.program_id(1)
    mask, of_head = inside[:, None] & (c < D), head * D + c
    own = (b * H + y) * W + x
    q = tl.load(query + own[:, None] * query_stride + of_head, mask, 0.0).to(tl.float32) * scale
    g = tl.load(grad + own[:, None] * heads * D + of_head, mask, 0.0).to(tl.float32)
    norm = tl.load(lse + own * heads + head, inside, 0.0)
    middle = tl.sum(g * tl.load(out + own[:, None] * heads * D + of_head, mask, 0.0).to(tl.float32), 1)
    tl.store(mean + own * heads + head, middle, inside)
    first_y, row = _window(y, KH, dilation, K)
    first_x, column = _window(x, KW, dilation, K)
    total = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for i in range(K):
        for j in range(K):
            there = ((b * KH + first_y + i * dilation) * KW + first_x + j * dilation)[:, None]
            k = tl.load(key + there * key_stride + of_head, mask, 0.0).to(tl.float32)
            logit = tl.sum(q * k, 1)
            if HAS_BIAS:
                place = (head * (2 * K - 1) + row + i) * (2 * K - 1) + column + j
                logit += tl.load(bias + place, inside, 0.0).to(tl.float32)
            v = tl.load(value + there * value_stride + of_head, mask, 0.0).to(tl.float32)
            of_logit = tl.exp(logit - norm) * (tl.sum(g * v, 1) - middle)
            total += of_logit[:, None] * k
            if HAS_BIAS:
                place = (((b * heads + head) * K + i) * K + j) * H * W + y * W + x
                tl.store(of_logits + place, of_logit, inside)
    tl.store(of_query + own[:, None] * heads * D + of_head, total * scale, mask)


@partial(limited, registers=96)
@triton.jit
def _neighbourhood_key_gradient(
    query, key, value, bias, grad, lse, mean, of_key, of_value, H, W, KH, KW, heads, dilation, scale,
    query_stride, key_stride, value_stride,
    D: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    scale = as_float32(scale)
    b, y, x, inside = _pixels(KH, KW, BLOCK)
    c, head = tl.arange(0, BLOCK_D)[None, :], tl.program_id(1)
    mask, of_head = inside[:, None] & (c < D), head * D + c
    own = ((b * KH + y) * KW + x)[:, None]
    k = tl.load(key + own * key_stride + of_head, mask, 0.0).to(tl.float32) * scale
    v = tl.load(value + own * value_stride + of_head, mask, 0.0).to(tl.float32)
    first_y, rows, row = _queries(y, KH, H, dilation, K)
    first_x, columns, column = _queries(x, KW, W, dilation, K)
    total_key = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    total_value = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for i in range(tl.max(tl.where(inside, rows, 0), 0)):
        for j in range(tl.max(tl.where(inside, columns, 0), 0)):
            used = inside & (i < rows) & (j < columns)
            both = used[:, None] & (c < D)
            there = (b * H + first_y + i * dilation) * W + first_x + j * dilation
            q = tl.load(query + there[:, None] * query_stride + of_head, both, 0.0).to(tl.float32)
            g = tl.load(grad + there[:, None] * heads * D + of_head, both, 0.0).to(tl.float32)
            logit = tl.sum(q * k, 1)
            if HAS_BIAS:
                place = (head * (2 * K - 1) + row - i) * (2 * K - 1) + column - j
                logit += tl.load(bias + place, used, 0.0).to(tl.float32)
            norm = tl.load(lse + there * heads + head, used, float('inf'))
            middle = tl.load(mean + there * heads + head, used, 0.0)
            weight = tl.exp(logit - norm)
            of_logit = weight * (tl.sum(g * v, 1) - middle)
            total_value += tl.where(used, weight, 0.0)[:, None] * g  # the own key or value may be infinite
            total_key += tl.where(used, of_logit, 0.0)[:, None] * q
    place = own * heads * D + of_head
    tl.store(of_key + place, total_key * scale, mask)
    tl.store(of_value + place, total_value, mask)
