"""Mean-shift attention on a GPU, as FlashAttention-2 computes plain attention: no N x M matrix is in memory.

A program of the forward pass works on some queries of one head, and goes through the keys. The key norms are sums over
the rows of a tile of keys, in float32; the probe is subtracted at the end. The backward pass makes the weights again
from the log-sum-exp of the logits: one kernel for queries and probes goes through the keys, one for keys and values
goes through the queries. Logits, sums and weights are in float32; the weights are rounded for products with values.

Tokens are read where the projection left them, and gradients of its parts are written side by side.
"""

from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import as_float32, cdiv, launch, limited, next_power_of_2, operators, product
from ..library import rows_of

#: queries and keys of a tile: of the forward pass, and of the gradients of queries and of keys
TILES = (128, 64), (128, 32), (32, 64)


def mean_shift_attention_triton(query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None) -> Tensor:
    """``mean_shift_attention_reference`` without bias and dropout."""
    tokens = (None if x is None else _rows(x.transpose(1, 2)) for x in (query, key, value, probe))
    return _operator(*tokens, torch.is_grad_enabled())[0].transpose(1, 2)


def projected_mean_shift_triton(projected: Tensor, parts: int, num_heads: int) -> Tensor:
    """The same of parts of a projection, (B, N, parts * C) -> (B, N, C)."""
    tokens = _rows(projected.unflatten(-1, (parts, num_heads, -1)))
    return _operator(tokens, None, None, None, torch.is_grad_enabled())[0].flatten(2)


def _rows(tokens: Tensor) -> Tensor:
    """Tokens (B, N, ...) whose distance in memory is the same everywhere."""
    return rows_of(tokens.unsqueeze(1))[0].squeeze(1)


def _attention(
    query: Tensor, key: Tensor | None, value: Tensor | None, probe: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, (B, N, heads, d), what the probe was subtracted from, of the same shape, and the log-sum-exp of each
    query's logits, in units of log 2, (B, heads, N).

    query: (B, N, heads, d), key and value (B, M, heads, d), or query is all of them, (B, N, parts, heads, d); keep:
    whether there is a backward pass. The second result is empty if there is none, or no probe.
    """
    tokens, constants = _constants(query, key, value, probe, *TILES[0])
    B, N, heads, d = tokens[0].shape
    out, lse = query.new_empty(B, N, heads, d), query.new_empty(B, heads, N, dtype=torch.float32)
    mean = query.new_empty(out.shape if keep and tokens[3] is not None else 0)
    launch(_mean_shift, _grid(out, constants['QUERIES']), *tokens, out, mean, lse, **constants, KEEP=keep)
    return out, mean, lse


def _gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    probe: Tensor | None,
    mean: Tensor,
    lse: Tensor,
) -> Tensor:
    """The gradients of the tokens of ``_attention``, one after the other in a vector. mean: of the values."""
    grad, given = grad.contiguous(), (query, key, value, probe)
    gradients = query.new_empty(sum(x.numel() for x in given if x is not None))
    parts = _parts(*_like(gradients, given))
    # Kernels get the vector and places in it: graphs of torch.compile copy views that are written.
    of_query, of_key, of_value, of_probe = (0 if x is None else x.storage_offset() for x in parts)
    middle = torch.empty_like(lse)  # the mean of the gradients of a query's weights
    tokens, constants = _constants(*given, *TILES[1])
    grid, written = _grid(parts[0], constants['QUERIES']), (gradients, of_query, of_probe, parts[0].stride(1))
    launch(_mean_shift_query_gradient, grid, *tokens, mean, grad, lse, middle, *written, **constants)
    tokens, constants = _constants(*given, *TILES[2])
    grid, written = _grid(parts[1], constants['KEYS']), (gradients, of_key, of_value, parts[1].stride(1))
    launch(_mean_shift_key_gradient, grid, *tokens, grad, lse, middle, *written, **constants)
    return gradients


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # only the first result has one
    (*tokens, ctx.keep), (out, mean, lse) = inputs, output
    ctx.save_for_backward(*tokens, mean if mean.numel() else out, lse)


def _differentiate(ctx, grad: Tensor, *_) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise ValueError('mean_shift kept nothing for a backward pass: call it with keep=True')
    return *_like(_gradient_operator(grad, *ctx.saved_tensors), ctx.saved_tensors[:4]), None


_operator, _gradient_operator = operators('mean_shift', _attention, _setup, _differentiate, _gradients)


def _parts(query: Tensor, key: Tensor | None, value: Tensor | None, probe: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*query.unbind(2), None)[:4] if key is None else (query, key, value, probe)


def _like(vector: Tensor, given: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Parts of a vector, of the given shapes."""
    sizes = [0 if x is None else x.numel() for x in given]
    return [None if x is None else part.view(x.shape) for part, x in zip(vector.split(sizes), given)]


def _constants(
    query: Tensor, key: Tensor | None, value: Tensor | None, probe: Tensor | None, queries: int, keys: int
) -> tuple[tuple[Tensor | None, ...], dict]:
    """Query, key, value and probe, and the numbers that all kernels have."""
    tokens = query, key, value, probe = _parts(query, key, value, probe)
    _, N, heads, d = query.shape
    names = 'query_stride', 'key_stride', 'value_stride', 'probe_stride'
    strides = dict(zip(names, (0 if x is None else x.stride(1) for x in tokens)))
    numbers = dict(N=N, M=key.shape[1], heads=heads, scale=d**-0.5, D=d, HAS_PROBE=probe is not None)
    return tokens, strides | numbers | dict(BLOCK_D=max(16, next_power_of_2(d)), QUERIES=queries, KEYS=keys)


def _grid(x: Tensor, block: int) -> tuple[int]:
    B, N, heads, _ = x.shape
    return (cdiv(N, block) * B * heads,)


@triton.jit
def _place(tokens, heads, BLOCK: tl.constexpr):
    """Image, head and first token of a program, and the image's head among all."""
    tiles = tl.cdiv(tokens, BLOCK)
    number = tl.program_id(0) // tiles
    return (number // heads).to(tl.int64), number % heads, tl.program_id(0) % tiles * BLOCK, number.to(tl.int64)


@triton.jit
def _at(first, stride, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Where the numbers of a head are for a tile of tokens."""
    i, c = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D)
    return tl.full((), first, tl.int64) * stride + (i[:, None] * stride + c[None, :])


@triton.jit
def _there(first, tokens, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Which of them there are."""
    inside = (first + tl.arange(0, BLOCK) < tokens)[:, None]
    if D < BLOCK_D:
        inside = inside & (tl.arange(0, BLOCK_D) < D)[None, :]
    return inside


@triton.jit
def _read(x, first, tokens, stride, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """A tile of tokens, zero where there are none."""
    return tl.load(x + _at(first, stride, BLOCK, BLOCK_D), _there(first, tokens, D, BLOCK, BLOCK_D), 0.0)


@triton.jit
def _write(x, values, first, tokens, stride, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    tl.store(x + _at(first, stride, BLOCK, BLOCK_D), values, _there(first, tokens, D, BLOCK, BLOCK_D))


@triton.jit
def _half_square(key, first, tokens, BLOCK: tl.constexpr):
    """|k|^2 / 2; infinite where there is no key, which so has no weight."""
    key = key.to(tl.float32)
    return tl.where(first + tl.arange(0, BLOCK) < tokens, tl.sum(key * key, 1) * 0.5, float('inf'))


@partial(limited, num_warps=8, num_stages=2)
@triton.jit
def _mean_shift(
    query, key, value, probe, out, mean, lse, N, M, heads, query_stride, key_stride, value_stride, probe_stride, scale,
    D: tl.constexpr, HAS_PROBE: tl.constexpr, KEEP: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    image, head, i, number = _place(N, heads, QUERIES)
    key += image * M * key_stride + head * D
    value += image * M * value_stride + head * D
    scale = as_float32(scale) * 1.4426950408889634  # exponentials of base 2 are fast
    q = _read(query + image * N * query_stride + head * D, i, N, query_stride, D, QUERIES, BLOCK_D)
    top = tl.full((QUERIES,), float('-inf'), tl.float32)
    weights = tl.zeros((QUERIES,), tl.float32)
    total = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    for j in range(0, M, KEYS):
        k = _read(key, j, M, key_stride, D, KEYS, BLOCK_D)
        logit = product(q, tl.trans(k)) - _half_square(k, j, M, KEYS)[None, :]
        before, top = top, tl.maximum(top, tl.max(logit, 1))
        weight = tl.exp2(logit * scale - (top * scale)[:, None])
        shrink = tl.exp2((before - top) * scale)
        weights = weights * shrink + tl.sum(weight, 1)
        v = _read(value, j, M, value_stride, D, KEYS, BLOCK_D)
        total = product(weight.to(v.dtype), v, total * shrink[:, None])
    total /= weights[:, None]
    place = (image * N * heads + head) * D
    if HAS_PROBE:
        if KEEP:  # The difference is rounded, and the backward pass needs the digits of the mean.
            _write(mean + place, total, i, N, heads * D, D, QUERIES, BLOCK_D)
        total -= _read(probe + image * N * probe_stride + head * D, i, N, probe_stride, D, QUERIES, BLOCK_D)
    _write(out + place, total, i, N, heads * D, D, QUERIES, BLOCK_D)
    rows = i + tl.arange(0, QUERIES)
    tl.store(lse + number * N + rows, top * scale + tl.log2(weights), rows < N)


@partial(limited, num_warps=8, num_stages=2)
@triton.jit
def _mean_shift_query_gradient(
    query, key, value, probe, mean, grad, lse, middle, gradients, of_query, of_probe, grad_stride,
    N, M, heads, query_stride, key_stride, value_stride, probe_stride, scale,
    D: tl.constexpr, HAS_PROBE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes them to ``gradients``, from ``of_query`` and ``of_probe`` on. Also writes ``middle``, the
    means of the gradients of a query's weights, which the other kernel reads."""
    scale = as_float32(scale)
    image, head, i, number = _place(N, heads, QUERIES)
    key += image * M * key_stride + head * D
    value += image * M * value_stride + head * D
    base, place = scale * 1.4426950408889634, (image * N * heads + head) * D
    q = _read(query + image * N * query_stride + head * D, i, N, query_stride, D, QUERIES, BLOCK_D)
    g = _read(grad + place, i, N, heads * D, D, QUERIES, BLOCK_D)
    values = _read(mean + place, i, N, heads * D, D, QUERIES, BLOCK_D)
    gradients += image * N * grad_stride + head * D
    if HAS_PROBE:
        _write(gradients + of_probe, -g.to(tl.float32), i, N, grad_stride, D, QUERIES, BLOCK_D)
    mean_gradient = tl.sum(g.to(tl.float32) * values.to(tl.float32), 1)
    rows = i + tl.arange(0, QUERIES)
    tl.store(middle + number * N + rows, mean_gradient, rows < N)
    norm = tl.load(lse + number * N + rows, rows < N, float('inf'))
    total = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    for j in range(0, M, KEYS):
        k = _read(key, j, M, key_stride, D, KEYS, BLOCK_D)
        v = _read(value, j, M, value_stride, D, KEYS, BLOCK_D)
        logit = product(q, tl.trans(k)) - _half_square(k, j, M, KEYS)[None, :]
        weight = tl.exp2(logit * base - norm[:, None])
        of_logit = weight * (product(g, tl.trans(v)) - mean_gradient[:, None])
        total = product(of_logit.to(k.dtype), k, total)
    _write(gradients + of_query, total * scale, i, N, grad_stride, D, QUERIES, BLOCK_D)


# Two sums of 64 x 64 numbers are in the registers of 4 warps. With 128 of these, a thread would spill up to 264 bytes.
@partial(limited, registers=168, num_stages=2)
@triton.jit
def _mean_shift_key_gradient(
    query, key, value, probe, grad, lse, middle, gradients, of_key, of_value, grad_stride,
    N, M, heads, query_stride, key_stride, value_stride, probe_stride, scale,
    D: tl.constexpr, HAS_PROBE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    scale = as_float32(scale)
    image, head, j, number = _place(M, heads, KEYS)
    query += image * N * query_stride + head * D
    grad += (image * N * heads + head) * D
    base = scale * 1.4426950408889634
    k = _read(key + image * M * key_stride + head * D, j, M, key_stride, D, KEYS, BLOCK_D)
    v = _read(value + image * M * value_stride + head * D, j, M, value_stride, D, KEYS, BLOCK_D)
    half_square = _half_square(k, j, M, KEYS)[:, None]
    total_key = tl.zeros((KEYS, BLOCK_D), tl.float32)
    total_value = tl.zeros((KEYS, BLOCK_D), tl.float32)
    of_square = tl.zeros((KEYS,), tl.float32)
    for i in range(0, N, QUERIES):
        q = _read(query, i, N, query_stride, D, QUERIES, BLOCK_D)
        g = _read(grad, i, N, heads * D, D, QUERIES, BLOCK_D)
        rows = i + tl.arange(0, QUERIES)
        norm = tl.load(lse + number * N + rows, rows < N, float('inf'))  # no query, no weight
        mean_gradient = tl.load(middle + number * N + rows, rows < N, 0.0)
        logit = product(k, tl.trans(q)) - half_square
        weight = tl.exp2(logit * base - norm[None, :])
        total_value = product(weight.to(g.dtype), g, total_value)
        of_logit = weight * (product(v, tl.trans(g)) - mean_gradient[None, :])
        of_square += tl.sum(of_logit, 1)
        total_key = product(of_logit.to(q.dtype), q, total_key)
    total_key = (total_key - of_square[:, None] * k.to(tl.float32)) * scale
    gradients += image * M * grad_stride + head * D
    _write(gradients + of_key, total_key, j, M, grad_stride, D, KEYS, BLOCK_D)
    _write(gradients + of_value, total_value, j, M, grad_stride, D, KEYS, BLOCK_D)
