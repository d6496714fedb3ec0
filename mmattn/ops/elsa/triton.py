"""The ELSA operator on a GPU. Attention weights are never in memory: the kernels make them from the logits.

As in FlashAttention, the forward pass keeps the log-sum-exp of the logits, and the backward pass makes weights from it.
As in NATTEN, a program works on a tile of pixels in two dimensions, whose neighbourhoods overlap, so that most
values come from the cache. The sum goes tap by tap. In the kernels of gradients, products have the dimensions (pixels,
taps of one row, channels of a head). Sums are in float32, whatever the dtype of the maps.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import cdiv, launch, limited, next_power_of_2, operators

#: the part of a map that a program of the sum works on, in bytes
MAP_BYTES = 4096
#: products that a program of a gradient makes at a time, in bytes of the values; more would spill
BLOCK_BYTES = 16384
#: pixels that one program of the ghost matrices' gradient sums over
CHUNK = 1024
#: number of elements of a map from which on indices have 64 bits
WIDE = 2**31


def elsa_attention_triton(
    logits: Tensor,
    value: Tensor,
    ghost_mul: Tensor | None = None,
    ghost_add: Tensor | None = None,
    dilation: int = 1,
    dropout_p: float = 0.0,
) -> Tensor:
    """``elsa_attention_reference``, all of it in one kernel.

    Logits may have any strides. The kernels are fastest if neighbouring pixels are contiguous.

    Raises:
        ValueError: if ``dropout_p`` is not 0.
    """
    if dropout_p:
        raise ValueError(f"backend 'triton' needs dropout_p=0, not {dropout_p}: choose backend 'shifted'")
    heads = logits.shape[-2]
    if value.stride(-1) != 1:  # The rows of a single image may be a view, in which channels are not neighbours.
        value = value.contiguous()
    if torch.empty_like(logits).stride() != logits.stride():  # gradients have the strides of the logits
        logits = logits.contiguous()
    # (taps, C): a program then reads contiguous parts of a ghost matrix
    ghosts = (None if ghost is None else ghost.float().flatten(1).t().contiguous() for ghost in (ghost_mul, ghost_add))
    return _operator(logits, value.unflatten(-1, (heads, -1)), *ghosts, dilation)[0].flatten(-2)


def _aggregate(
    logits: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> tuple[Tensor, Tensor]:
    """``sum_j (softmax(logits)[j] * mul[j] + add[j]) * shift_j(value)``, and the log-sum-exp of the logits.

    logits: (B, H, W, heads, taps); value: (B, H, W, heads, d); mul, add: (taps, heads * d), float32, or None ->
    (B, H, W, heads, d), and (B, heads, H, W) in float32.
    """
    B, H, W, heads, _ = value.shape
    lse = value.new_empty(B, heads, H, W, dtype=torch.float32)
    return _weighted_sum(logits, lse, value, mul, add, dilation, reverse=False), lse


def _gradients(
    grad: Tensor, logits: Tensor, lse: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the arguments of ``_aggregate``; those of mul and add are one tensor, (2, taps, heads * d)."""
    grad = grad.contiguous()
    grad_value = _weighted_sum(logits, lse, grad, mul, add, dilation, reverse=True)
    grad_logits = torch.empty_like(logits)
    rows, constants = _rows(value), _constants(logits, value, mul, dilation)
    launch(_elsa_logits_gradient, _grid(value, constants), logits, lse, rows, mul, grad, grad_logits, **constants)
    chunks = cdiv(rows.shape[0], CHUNK) if mul is not None or add is not None else 0
    sums = grad.new_empty(2, chunks, logits.shape[-1], rows.shape[1], dtype=torch.float32)
    if chunks:
        constants['BLOCK'] = min(constants['BLOCK'] // 2, CHUNK)  # its sums take more registers
        constants.update(N=rows.shape[0], CHUNK=CHUNK)
        grid = (chunks * constants['K'], constants['heads'])
        launch(_elsa_ghost_gradient, grid, logits, lse, rows, grad, sums[0], sums[1], **constants)
    return grad_logits, grad_value, sums.sum(1)


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    logits, value, mul, add, ctx.dilation = inputs
    ctx.set_materialize_grads(False)  # the log-sum-exp has none
    ctx.save_for_backward(logits, output[1], value, mul, add)


def _differentiate(ctx, grad: Tensor, _) -> tuple[Tensor | None, ...]:
    _, _, _, mul, add = ctx.saved_tensors
    grad_logits, grad_value, sums = _gradient_operator(grad, *ctx.saved_tensors, ctx.dilation)
    return grad_logits, grad_value, None if mul is None else sums[0], None if add is None else sums[1], None


_operator, _gradient_operator = operators('elsa', _aggregate, _setup, _differentiate, _gradients)


def _weighted_sum(
    logits: Tensor, lse: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int, reverse: bool
) -> Tensor:
    """The output; writes ``lse``. If reverse: the gradient of the value, and ``value`` is that of the output."""
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    constants = _constants(logits, value, mul, dilation) | dict(HAS_ADD=add is not None, REVERSE=reverse)
    constants['BLOCK'] = max(MAP_BYTES // value.element_size() // constants['BLOCK_D'], 8)
    launch(_elsa, _grid(value, constants), logits, lse, _rows(value), mul, add, out, **constants)
    return out


def _rows(value: Tensor) -> Tensor:
    """(pixels, channels), without a copy of a part of a fused projection."""
    return value.reshape(-1, value.shape[3] * value.shape[4])


def _grid(value: Tensor, constants: dict) -> tuple[int, int]:
    B, H, W, heads, _ = value.shape
    return B * cdiv(H, constants['BLOCK'] // 8) * cdiv(W, 8), heads


def _constants(logits: Tensor, value: Tensor, mul: Tensor | None, dilation: int) -> dict:
    """Arguments that all kernels have."""
    _, H, W, heads, d = value.shape
    k, stride = math.isqrt(logits.shape[-1]), _rows(value).stride(0)
    block_row, block_d = next_power_of_2(k), next_power_of_2(d)
    block = BLOCK_BYTES // value.element_size() // (1 if mul is None else 2) // block_row // block_d
    return dict(
        **dict(zip(('stride_b', 'stride_y', 'stride_x', 'stride_h', 'stride_t'), logits.stride()), stride=stride),
        **dict(H=H, W=W, heads=heads, dilation=dilation, D=d, K=k, HAS_MUL=mul is not None),
        **dict(BLOCK=max(block, 8), BLOCK_ROW=block_row, BLOCK_D=block_d),
        WIDE=bool(max(logits.numel(), value.shape[:3].numel() * stride) >= WIDE),
    )


@triton.jit
def _index(i, WIDE: tl.constexpr):
    return i.to(tl.int64) if WIDE else i


@triton.jit
def _pixels(H, W, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Image, rows and columns of a program's tile of pixels, 8 columns wide, and whether they are in the map."""
    tile, i = tl.program_id(0), _index(tl.arange(0, BLOCK), WIDE)
    across, down = tl.cdiv(W, 8), tl.cdiv(H, BLOCK // 8)
    y, x = tile // across % down * (BLOCK // 8) + i // 8, tile % across * 8 + i % 8
    return _index(tile // across // down, WIDE), y, x, (y < H) & (x < W)


@partial(limited, registers=64)
@triton.jit
def _elsa(
    logits, lse, value, mul, add, out, stride, stride_b, stride_y, stride_x, stride_h, stride_t,
    H, W, heads, dilation, D: tl.constexpr, K: tl.constexpr, HAS_MUL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_ROW: tl.constexpr, BLOCK_D: tl.constexpr, HAS_ADD: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """The sum over the neighbourhood. REVERSE: with the weights that the neighbours have for the pixel."""
    b, y, x, inside = _pixels(H, W, WIDE, BLOCK)
    c = _index(tl.arange(0, BLOCK_D), WIDE)[None, :]
    head, pixel = tl.program_id(1).to(c.dtype), (b * H + y) * W + x
    logits += b * stride_b + head * stride_h + y * stride_y + x * stride_x
    lse += (b * heads + head) * H * W + y * W + x
    value += pixel[:, None] * stride + head * D + c
    if not REVERSE:
        taps = _index(tl.arange(0, BLOCK_ROW * BLOCK_ROW), WIDE)[None, :]
        nothing = tl.where(taps < K * K, 0.0, float('-inf'))
        logit = tl.load(logits[:, None] + taps * stride_t, inside[:, None] & (taps < K * K), nothing).to(tl.float32)
        top = tl.max(logit, 1)
        tl.store(lse, top + tl.log(tl.sum(tl.exp(logit - top[:, None]), 1)), inside)
        tl.debug_barrier()  # Other threads of the program read what was stored, in the layout of the loop.
        norm = tl.load(lse, inside, 0.0)
    total = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    one = tl.full((), 1, c.dtype)  # makes an index of a product of integers
    for row in range(K):
        to_y = y + (row - K // 2) * dilation
        for column in range(K):
            to_x, tap = x + (column - K // 2) * dilation, (row * K + column) * one
            there = inside & (to_y >= 0) & (to_y < H) & (to_x >= 0) & (to_x < W)
            down, right = (row - K // 2) * dilation * one, (column - K // 2) * dilation
            v = tl.load(value + (down * W + right) * stride, there[:, None] & (c < D), 0.0).to(tl.float32)
            at = logits
            if REVERSE:
                tap = K * K - 1 - tap
                at += down * stride_y + right * stride_x
                norm = tl.load(lse + down * W + right, there, 0.0)
            weight = tl.exp(tl.load(at + tap * stride_t, there, float('-inf')).to(tl.float32) - norm)[:, None]
            ghost = (tap * heads + head) * D + c
            if HAS_MUL:
                weight = weight * tl.load(mul + ghost, c < D, 0.0)
            if HAS_ADD:
                weight = weight + tl.load(add + ghost, c < D, 0.0)
            total += weight * v
    tl.store(out + (pixel[:, None] * heads + head) * D + c, total, inside[:, None] & (c < D))


@limited
@triton.jit
def _elsa_logits_gradient(
    logits, lse, value, mul, grad, grad_logits, stride, stride_b, stride_y, stride_x, stride_h, stride_t,
    H, W, heads, dilation, D: tl.constexpr, K: tl.constexpr, HAS_MUL: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_ROW: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b, y, x, inside = _pixels(H, W, WIDE, BLOCK)
    c = _index(tl.arange(0, BLOCK_D), WIDE)
    head = tl.program_id(1).to(c.dtype)
    column = _index(tl.arange(0, BLOCK_ROW), WIDE)[None, :]
    logits += b * stride_b + head * stride_h
    grad_logits += b * stride_b + head * stride_h
    own = (y * stride_y + x * stride_x)[:, None]
    place = (((b * H + y) * W + x) * heads + head) * D
    g = tl.load(grad + place[:, None] + c[None, :], inside[:, None] & (c < D)[None, :], 0.0).to(tl.float32)
    for row in range(K):
        tap = row * K + column
        to_y, to_x = (y + (row - K // 2) * dilation)[:, None], x[:, None] + (column - K // 2) * dilation
        there = inside[:, None] & (column < K) & (to_y >= 0) & (to_y < H) & (to_x >= 0) & (to_x < W)
        both = there[:, :, None] & (c < D)[None, None, :]
        neighbour = ((b * H + to_y) * W + to_x) * stride + head * D
        v = tl.load(value + neighbour[:, :, None] + c[None, None, :], both, 0.0).to(tl.float32)
        if HAS_MUL:
            ghost = tl.broadcast_to(((tap * heads + head) * D)[:, :, None] + c[None, None, :], both.shape)
            v *= tl.load(mul + ghost, both, 0.0)
        tl.store(grad_logits + own + tap * stride_t, tl.sum(g[:, None, :] * v, 2), inside[:, None] & (column < K))
    # The gradient of the softmax needs a sum over all taps. Other threads of the program read what was stored.
    tl.debug_barrier()
    taps = _index(tl.arange(0, BLOCK_ROW * BLOCK_ROW), WIDE)[None, :]
    mask = inside[:, None] & (taps < K * K)
    logit = tl.load(logits + own + taps * stride_t, mask, float('-inf')).to(tl.float32)
    norm = tl.load(lse + ((b * heads + head) * H + y) * W + x, inside, 0.0)
    weight = tl.exp(logit - norm[:, None])
    of_weight = tl.load(grad_logits + own + taps * stride_t, mask, 0.0).to(tl.float32)
    of_logit = weight * (of_weight - tl.sum(weight * of_weight, 1)[:, None])
    tl.store(grad_logits + own + taps * stride_t, of_logit, mask)


@partial(limited, num_warps=2)
@triton.jit
def _elsa_ghost_gradient(
    logits, lse, value, grad, grad_mul, grad_add, stride, stride_b, stride_y, stride_x, stride_h, stride_t,
    H, W, heads, dilation, N, D: tl.constexpr, K: tl.constexpr, HAS_MUL: tl.constexpr, WIDE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, BLOCK_ROW: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A program sums over a chunk of the pixels for a row of taps, so that it reads a gradient once for all of them."""
    c, column = _index(tl.arange(0, BLOCK_D), WIDE), _index(tl.arange(0, BLOCK_ROW), WIDE)[None, :]
    chunk, row, head = tl.program_id(0) // K, tl.program_id(0) % K, tl.program_id(1).to(c.dtype)
    logits += head * stride_h
    total_mul = tl.zeros((BLOCK, BLOCK_ROW, BLOCK_D), tl.float32)
    total_add = tl.zeros((BLOCK, BLOCK_ROW, BLOCK_D), tl.float32)
    for start in range(0, CHUNK, BLOCK):
        n = chunk * CHUNK + start + _index(tl.arange(0, BLOCK), WIDE)
        b, y, x, inside = n // W // H, n // W % H, n % W, n < N
        place = (n * heads + head) * D
        g = tl.load(grad + place[:, None] + c[None, :], inside[:, None] & (c < D)[None, :], 0.0).to(tl.float32)
        to_y, to_x = (y + (row - K // 2) * dilation)[:, None], x[:, None] + (column - K // 2) * dilation
        there = inside[:, None] & (column < K) & (to_y >= 0) & (to_y < H) & (to_x >= 0) & (to_x < W)
        both = there[:, :, None] & (c < D)[None, None, :]
        neighbour = ((b[:, None] * H + to_y) * W + to_x) * stride + head * D
        v = tl.load(value + neighbour[:, :, None] + c[None, None, :], both, 0.0).to(tl.float32)
        product = g[:, None, :] * v
        total_add += product
        if HAS_MUL:
            at = logits + (b * stride_b + y * stride_y + x * stride_x)[:, None]
            weight = tl.load(at + (row * K + column) * stride_t, there, float('-inf')).to(tl.float32)
            norm = tl.load(lse + ((b * heads + head) * H + y) * W + x, inside, 0.0)
            total_mul += product * tl.exp(weight - norm[:, None])[:, :, None]
    column = _index(tl.arange(0, BLOCK_ROW), WIDE)[:, None]
    place = ((chunk * K * K + row * K + column) * heads + head) * D + c[None, :]
    mask = (column < K) & (c < D)[None, :]
    tl.store(grad_add + place, tl.sum(total_add, 0), mask)
    if HAS_MUL:
        tl.store(grad_mul + place, tl.sum(total_mul, 0), mask)
