"""GSA's content attention on a GPU: the means of the values, whose weights are a softmax of the keys over all pixels.

A program has a part of the pixels, for one head. It reads the keys for their maximum, and again, from the cache, for
the sums: a running maximum would make its threads wait for each other at each step. A second kernel merges the parts.
In bfloat16, weights are rounded to it, and their sum is that of the rounded ones. Other products have the precision of
TF32, that is the digits of float16 and the range of float32: weights of large maps would round to zero in float16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import cdiv, launch, next_power_of_2, operators, product
from ..library import rows_of

#: pixels that a program works on at a time
BLOCK = 64
#: pixels of a part at least, programs that are enough for a GPU, and numbers of a tile that are merged at a time
PIXELS, PROGRAMS, NUMBERS = 256, 2048, 4096


def content_context_triton(key: Tensor, value: Tensor) -> Tensor:
    """``content_context_batched``."""
    return _operator(key, rows_of(value)[0])[0]


def products(a: Tensor, b: Tensor) -> Tensor:
    """The sum of ``a b^T`` over all pixels, for each image and head, in float32.

    Args:
        a: (B, H, W, heads, k).
        b: (B, H, W, heads, v), whose pixels have a common stride.

    Returns:
        (B, heads, k, v).
    """
    _, _, sums = _parts(a, b, softmax=False)
    return sums.sum(1) if sums.shape[1] > 1 else sums.squeeze(1)


def context_and_lse(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """(B, heads, k, v), and the log-sum-exp of the keys over all pixels, (B, heads, k), both in float32."""
    top, total, sums = _parts(key, value, softmax=True)
    B, parts, heads, K, V = sums.shape
    if parts == 1:
        return sums.squeeze(1), top.squeeze(1)
    context, lse = sums.new_empty(B, heads, K, V), sums.new_empty(B, heads, K)
    D, PARTS = _block(K, V), next_power_of_2(parts)
    ROWS = max(1, min(D, NUMBERS // (D * PARTS)))
    constants = dict(parts=parts, heads=heads, K=K, V=V, D=D, ROWS=ROWS, PARTS=PARTS)
    launch(_content_merge, (B * heads, cdiv(K, ROWS)), top, total, sums, context, lse, **constants)
    return context, lse


def _gradients(grad: Tensor, key: Tensor, value: Tensor, context: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of key and value."""
    of_maps = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (key, value)]
    write_gradients(grad, key, value, context, lse, *of_maps)
    return tuple(of_maps)


def write_gradients(
    grad: Tensor, key: Tensor, value: Tensor, context: Tensor, lse: Tensor, of_key: Tensor, of_value: Tensor
) -> None:
    """The gradients of key and value, to maps whose pixels have a common stride."""
    constants = _constants(key, value)
    constants['BLOCK'] = min(BLOCK, 2048 // constants['D'])  # more would spill
    grid = (key.shape[0] * key.shape[3] * cdiv(constants['pixels'], constants['BLOCK']),)
    tensors, strides = (key, value, context, lse, grad.contiguous()), (of_key.stride(2), of_value.stride(2))
    launch(_content_gradient, grid, *tensors, of_key, of_value, *strides, **constants)


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # the log-sum-exp has none
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx, grad: Tensor, _) -> tuple[Tensor, Tensor]:
    return _gradient_operator(grad, *ctx.saved_tensors)


_operator, _gradient_operator = operators('content', context_and_lse, _setup, _differentiate, _gradients)


def _parts(a: Tensor, b: Tensor, softmax: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of parts of the pixels: the largest ``a`` of each channel and the sum of exp(a - largest), (B, parts, heads, k),
    and the products of that with ``b``, (B, parts, heads, k, v). If there is one part: log-sum-exp, nothing, and means.
    Without softmax: products of ``a`` itself."""
    B, _, _, heads, K = a.shape
    constants = _constants(a, b)
    parts = min(cdiv(constants['pixels'], PIXELS), cdiv(PROGRAMS, max(1, B * heads)))
    share = cdiv(cdiv(constants['pixels'], parts), BLOCK) * BLOCK
    parts = cdiv(constants['pixels'], share)
    top, total = (a.new_empty(B, parts, heads, K, dtype=torch.float32) for _ in range(2))
    sums = a.new_empty(B, parts, heads, K, b.shape[-1], dtype=torch.float32)
    half = a.dtype == b.dtype == torch.bfloat16
    if half:
        constants['num_warps'] = constants['D'] // 8  # few: warps of a program wait for each other
    launch(
        _content_parts, (B * parts * heads,), a, b, top, total, sums, parts, share, **constants,
        SOFTMAX=softmax, WHOLE=bool(parts == 1), HALF=half,
    )  # fmt: skip
    return top, total, sums


def _block(K: int, V: int) -> int:
    return max(16, next_power_of_2(max(K, V)))


def _constants(a: Tensor, b: Tensor) -> dict[str, int]:
    """Arguments that kernels have. Of keys, pixels or channels may be neighbours in memory."""
    _, H, W, heads, K = a.shape
    V = b.shape[-1]
    image, pixel, head, channel = a.flatten(1, 2).stride()
    strides = dict(image_stride=image, pixel_stride=pixel, head_stride=head, channel_stride=channel)
    numbers = dict(b_stride=b.stride(2), pixels=H * W, heads=heads, K=K, V=V, D=_block(K, V), BLOCK=BLOCK)
    return strides | numbers | dict(num_warps=numbers['D'] // 4)


@triton.jit
def _read(x, first, pixel, end, stride, channel_stride, WIDTH: tl.constexpr, D: tl.constexpr, other):
    """(pixels, channels), ``other`` where there is none."""
    c = tl.arange(0, D)[None, :]
    place = pixel.to(tl.int64)[:, None] * stride + c * channel_stride
    return tl.load(x + first + place, (pixel < end)[:, None] & (c < WIDTH), other)


@triton.jit
def _read_matrix(x, K: tl.constexpr, V: tl.constexpr, D: tl.constexpr):
    k, v = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    return tl.load(x + k * V + v, (k < K) & (v < V), 0.0)


@triton.jit
def _content_parts(
    a, b, top, total, sums, parts, share, image_stride, pixel_stride, head_stride, channel_stride, b_stride,
    pixels, heads, K: tl.constexpr, V: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, SOFTMAX: tl.constexpr,
    WHOLE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    head, part, image = number % heads, number // heads % parts, number // heads // parts
    k, v = tl.arange(0, D), tl.arange(0, D)
    acc, largest, counts = tl.zeros((D, D), tl.float32), k, tl.zeros((BLOCK, D), tl.float32)
    of_a, of_b = image * image_stride + head * head_stride, image * pixels * b_stride + head * V
    end = tl.minimum((part + 1) * share, pixels)
    if SOFTMAX:
        tops = tl.full((BLOCK, D), -1e30, tl.float32)
        for start in range(part * share, end, BLOCK):
            pixel = start + tl.arange(0, BLOCK)
            x = _read(a, of_a, pixel, end, pixel_stride, channel_stride, K, D, float('-inf'))
            tops = tl.maximum(tops, x.to(tl.float32))
        largest = tl.max(tops, 0)
    for start in range(part * share, end, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        x = _read(a, of_a, pixel, end, pixel_stride, channel_stride, K, D, float('-inf') if SOFTMAX else 0.0)
        y = _read(b, of_b, pixel, end, b_stride, 1, V, D, 0.0)
        if SOFTMAX:
            x = tl.exp(x.to(tl.float32) - largest[None, :]).to(y.dtype if HALF else tl.float32)
            counts += x.to(tl.float32)
        if HALF:
            acc = product(tl.trans(x), y, acc)
        else:
            acc = tl.dot(tl.trans(x.to(tl.float32)), y.to(tl.float32), acc, input_precision='tf32')
    if SOFTMAX:
        count = tl.sum(counts, 0)
        if WHOLE:
            count = tl.where(k < K, count, 1.0)
            acc, largest = acc / count[:, None], largest + tl.log(count)
        tl.store(top + number * K + k, largest, k < K)
        tl.store(total + number * K + k, count, k < K)
    tl.store(sums + (number * K + k[:, None]) * V + v[None, :], acc, (k < K)[:, None] & (v < V)[None, :])


@triton.jit
def _content_merge(
    top, total, sums, context, lse, parts, heads, K: tl.constexpr, V: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Some channels of the keys, of an image and a head."""
    number, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    k, v = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    at = ((number // heads * parts + part) * heads + number % heads)[:, None] * K + k[None, :]
    inside = (part < parts)[:, None] & (k < K)[None, :]
    tops = tl.load(top + at, inside, -1e30)
    largest = tl.max(tops, 0)
    factor = tl.exp(tops - largest[None, :])
    count = tl.where(k < K, tl.sum(tl.load(total + at, inside, 0.0) * factor, 0), 1.0)
    place = at[:, :, None] * V + v[None, None, :]
    values = tl.load(sums + place, inside[:, :, None] & (v < V)[None, None, :], 0.0)
    acc = tl.sum(values * factor[:, :, None], 0) / count[:, None]
    row = number * K + k
    tl.store(context + row[:, None] * V + v[None, :], acc, (k < K)[:, None] & (v < V)[None, :])
    tl.store(lse + row, largest + tl.log(count), k < K)


@triton.jit
def _content_gradient(
    key, value, context, lse, grad, grad_key, grad_value, grad_key_stride, grad_value_stride, image_stride,
    pixel_stride, head_stride, channel_stride, b_stride, pixels, heads, K: tl.constexpr, V: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the mean sum_n w[n, k] V[n]: dV[n] = sum_k w[n, k] g[k], and dK[n, k] = w[n, k] (V[n] - mean[k]) . g[k]."""
    number, blocks = tl.program_id(0).to(tl.int64), tl.cdiv(pixels, BLOCK)
    head, block, image = number % heads, number // heads % blocks, number // heads // blocks
    pixel, c = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    here = image * heads + head
    g = _read_matrix(grad + here * K * V, K, V, D)
    common = tl.sum(g * _read_matrix(context + here * K * V, K, V, D), 1)
    of_key, of_value = image * image_stride + head * head_stride, image * pixels * b_stride + head * V
    x = _read(key, of_key, pixel, pixels, pixel_stride, channel_stride, K, D, float('-inf')).to(tl.float32)
    w = tl.exp(x - tl.load(lse + here * K + c, c < K, 0.0)[None, :])
    y = _read(value, of_value, pixel, pixels, b_stride, 1, V, D, 0.0).to(tl.float32)
    of_weights = tl.dot(y, tl.trans(g), input_precision='tf32')
    row, inside = (image * pixels + pixel)[:, None], (pixel < pixels)[:, None]
    to_key = grad_key + row * grad_key_stride + (head * K + c)[None, :]
    to_value = grad_value + row * grad_value_stride + (head * V + c)[None, :]
    tl.store(to_key, w * (of_weights - common[None, :]), inside & (c < K)[None, :])
    tl.store(to_value, tl.dot(w, g, input_precision='tf32'), inside & (c < V)[None, :])
