"""Aggregated attention on a GPU, as FlashAttention-2 computes plain attention: no weights of pooled tokens are in
memory.

A program of the forward pass works on some queries of one head. It goes through their neighbours one by one, then
through tiles of the pooled tokens, in one softmax. Norms, scales and the weights that are added to the softmax are
computed where they are needed: kernels read what linear layers write, and write what the next one reads.

The backward pass makes the weights again from the log-sum-exp of the logits. The first kernel goes through the keys of
each query. It stores the weights of neighbours and the gradients of their logits, so that the second only adds up what
the queries around a pixel have of it. The third goes through the queries of each pooled token, and the fourth through
the images, for the gradient of the bias by position. Sums are in float32. No program writes what another one does, so
that results do not depend on their order.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..elsa.reference import side
from ..gpu import cdiv, launch, limited, next_power_of_2, operators, product
from ..library import rows_of

#: pixels and pooled tokens of a tile: of the forward pass, and of the gradients of queries, keys, pooled tokens, bias
TILES = (64, 64), (64, 32), (64, 64), (32, 64), (32, 64)
#: programs of the gradient of pooled tokens, if tiles are fewer: each has a part of the queries
PROGRAMS = 1024
LOG2E = tl.constexpr(1.4426950408889634)
LEAST_NORM = tl.constexpr(1e-6)  # see reference.of_norm_1


def aggregated_attention_triton(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
    pooled_bias: Tensor,
) -> Tensor:
    """``aggregated_attention_reference`` without dropout. pooled_bias: of all rows, (heads, H, h, W, w)."""
    maps = (rows_of(x)[0] for x in (query, key_value, pooled))
    others = (x.contiguous() for x in (temperature, embedding, bias, tokens, token_bias, pooled_bias))
    return _operator(*maps, *others, torch.is_grad_enabled())[0]


def _attention(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
    pooled_bias: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, what the softmax alone gives, pooled keys of norm 1, (B, M, heads, d), and the log-sum-exp of each
    query's logits, in units of log 2, (B, heads, N).

    keep: whether there is a backward pass. Without, the second result is empty.
    """
    B, H, W, heads, d = query.shape
    numbers = _numbers(query, key_value, pooled, bias, 0)
    M, parameters = numbers['M'], (temperature, embedding, bias, tokens, token_bias, pooled_bias)
    units, out = query.new_empty(B, M, heads, d), query.new_empty(query.shape)
    mean = query.new_empty(query.shape if keep else 0)
    lse = query.new_empty(B, heads, H * W, dtype=torch.float32)
    launch(_unit_keys, _grid(M, numbers, 'KEYS'), pooled, units, **numbers)
    given = query, key_value, pooled, units, *parameters
    launch(_aggregated, _grid(H * W, numbers), *given, out, mean, lse, **numbers, KEEP=keep)
    return out, mean, units, lse


def _gradients(
    grad: Tensor,
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    tokens: Tensor,
    token_bias: Tensor,
    pooled_bias: Tensor,
    mean: Tensor,
    units: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Those of query, key_value, pooled, the other parameters one after the other in a vector, and pooled_bias."""
    grad, (B, H, W, heads, _) = grad.contiguous(), query.shape
    parameters = temperature, embedding, bias, tokens, token_bias
    _, of_queries, of_keys, of_tokens, of_biases = (_numbers(query, key_value, pooled, bias, i) for i in range(5))
    of_query, of_key_value = query.new_empty(query.shape), key_value.new_empty(key_value.shape)
    of_bias, middle = torch.empty_like(pooled_bias), torch.empty_like(lse)  # of the gradients of a query's weights
    scaled, weights = torch.empty_like(of_query), query.new_empty(B, heads, 2, bias.shape[1], H * W)
    sums = lse.new_empty(B * cdiv(H * W, of_queries['QUERIES']), sum(x.numel() for x in parameters))
    grid = _grid(H * W, of_queries)
    given = query, key_value, pooled, units, *parameters, pooled_bias, mean, grad, lse
    launch(_aggregated_query_gradient, grid, *given, of_query, scaled, middle, weights, sums, **of_queries)
    grid = _grid(H * W, of_keys)
    launch(_aggregated_key_gradient, grid, key_value, scaled, grad, weights, of_key_value, **of_keys)
    given, M = (pooled, units, pooled_bias, scaled, grad, lse, middle), of_tokens['M']
    (programs,) = _grid(M, of_tokens, 'KEYS')
    tiles = cdiv(H * W, of_tokens['QUERIES'])
    share = cdiv(tiles, max(1, PROGRAMS // max(programs, 1)))  # of a program
    parts = cdiv(tiles, share)
    of_pooled = pooled.new_empty(parts, *pooled.shape, dtype=pooled.dtype if parts == 1 else torch.float32)
    launch(_aggregated_pooled_gradient, (programs, parts), *given, of_pooled, **of_tokens, share=share)
    of_pooled = of_pooled[0] if parts == 1 else of_pooled.sum(0).to(pooled.dtype)
    grid = cdiv(H * W, of_biases['QUERIES']) * heads, cdiv(M, of_biases['KEYS'])
    launch(_aggregated_bias_gradient, grid, *given, of_bias, **of_biases)
    return of_query, of_key_value, of_pooled, sums.sum(0), of_bias


def _setup(ctx, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # only the first result has one
    (*tensors, ctx.keep), (_, *kept) = inputs, output
    ctx.save_for_backward(*tensors, *kept)


def _differentiate(ctx, grad: Tensor, *_) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise ValueError('aggregated_attention kept nothing for a backward pass: call it with keep=True')
    *maps, of_parameters, of_bias = _gradient_operator(grad, *ctx.saved_tensors)
    parameters = ctx.saved_tensors[3:8]
    parts = of_parameters.split([x.numel() for x in parameters])
    return *maps, *(part.view(x.shape).to(x.dtype) for part, x in zip(parts, parameters)), of_bias, None


_operator, _gradient_operator = operators(
    'aggregated_attention_products', _attention, _setup, _differentiate, _gradients
)


def _grid(count: int, numbers: dict, block: str = 'QUERIES') -> tuple[int]:
    return (numbers['B'] * numbers['heads'] * cdiv(count, numbers[block]),)


def _numbers(query: Tensor, key_value: Tensor, pooled: Tensor, bias: Tensor, tiles: int) -> dict:
    """Arguments that all kernels have. tiles: which of :data:`TILES`."""
    (B, H, W, heads, d), (h, w) = query.shape, pooled.shape[1:3]
    strides = dict(query_stride=query.stride(2), stride=key_value.stride(2), pooled_stride=pooled.stride(2))
    constants = dict(D=d, K=side(bias.shape[1]), BLOCK_D=max(16, next_power_of_2(d)))
    tile = dict(zip(('QUERIES', 'KEYS'), TILES[tiles]))
    return dict(B=B, H=H, W=W, M=h * w, w=w, heads=heads) | strides | constants | tile


@triton.jit
def _place(B, heads, BLOCK: tl.constexpr):
    """Image, head and the first pixel or token of a program. Programs of the same tile of all images follow each other,
    so that its biases are read from a cache."""
    number = tl.program_id(0)
    return (number % B).to(tl.int64), number // B % heads, number // B // heads * BLOCK


@triton.jit
def _read(x, at, there, c, D: tl.constexpr):
    """Channels c at some places, zero where there is nothing."""
    return tl.load(x + at[:, None] + c[None, :], there[:, None] & (c < D)[None, :], 0.0)


@triton.jit
def _inverse_norm(x):
    norm = tl.sqrt(tl.sum(x * x, 1))
    return 1.0 / tl.where(norm < LEAST_NORM, float('inf'), norm)


@triton.jit
def _through_norm(gradient, unit, inverse):
    """The gradient of vectors, from that of the same vectors of norm 1."""
    return (gradient - unit * tl.sum(gradient * unit, 1)[:, None]) * inverse[:, None]


@triton.jit
def _near(place, size, K: tl.constexpr):
    """The number of neighbours of a pixel that are inside, along an axis."""
    return tl.minimum(place + K // 2, size - 1) - tl.maximum(place - K // 2, 0) + 1


@triton.jit
def _softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _scaled(q, temperature, embedding, y, x, c, head, H, W, M, D: tl.constexpr, K: tl.constexpr):
    """Queries of norm 1, the inverse of their norms, their scales, and queries as they are multiplied with keys."""
    q = q.to(tl.float32)
    inverse = _inverse_norm(q)
    unit = q * inverse[:, None]
    keys = tl.maximum(_near(y, H, K) * _near(x, W, K) + M, 1)  # some number for pixels outside
    scale = _softplus(tl.load(temperature + head).to(tl.float32)) * tl.log(keys.to(tl.float32))
    embedded = unit + tl.load(embedding + head * D + c, c < D, 0.0).to(tl.float32)[None, :]
    return unit, inverse, scale, embedded * scale[:, None]


@triton.jit
def _neighbour(y, x, inside, H, W, j, sign, K: tl.constexpr):
    """The number of the pixel at the relative position j, or with sign -1 of the one whose neighbour j this is; and
    whether it is in the map."""
    y, x = y + sign * (j // K - K // 2), x + sign * (j % K - K // 2)
    return y * W + x, inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)


@triton.jit
def _positions(n, m, head, H, W, M, w):
    """Where the biases of queries n and pooled tokens m are in (heads, H, h, W, w)."""
    of_query = n // W * (M * W) + n % W * w
    return tl.full((), head, tl.int64) * H * W * M + (of_query + (m // w * (W * w) + m % w))


@triton.jit
def _unit_keys(
    pooled, units, B, H, W, M, w, heads, query_stride, stride, pooled_stride,
    D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Pooled keys of norm 1."""
    image, head, first = _place(B, heads, KEYS)
    m, c = first + tl.arange(0, KEYS), tl.arange(0, BLOCK_D)
    key = _read(pooled + image * M * pooled_stride + head * D, m * pooled_stride, m < M, c, D).to(tl.float32)
    to = units + image * M * heads * D + head * D + (m * (heads * D))[:, None] + c[None, :]
    tl.store(to, key * _inverse_norm(key)[:, None], (m < M)[:, None] & (c < D)[None, :])


@partial(limited, num_stages=2)
@triton.jit
def _aggregated(
    query, key_value, pooled, units, temperature, embedding, bias, tokens, token_bias, pooled_bias, out, mean, lse,
    B, H, W, M, w, heads, query_stride, stride, pooled_stride,
    D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    image, head, first = _place(B, heads, QUERIES)
    n, c = first + tl.arange(0, QUERIES), tl.arange(0, BLOCK_D)
    y, x, inside = n // W, n % W, n < H * W
    key_value += image * H * W * stride + head * D
    units += image * M * heads * D + head * D
    pooled += image * M * pooled_stride + (heads + head) * D
    q = _read(query + image * H * W * query_stride + head * D, n * query_stride, inside, c, D)
    unit, _, scale, exact = _scaled(q, temperature, embedding, y, x, c, head, H, W, M, D, K)
    scaled = exact.to(q.dtype)
    largest, weights = tl.full((QUERIES,), -1e30, tl.float32), tl.zeros((QUERIES,), tl.float32)
    total, added = tl.zeros((QUERIES, BLOCK_D), tl.float32), tl.zeros((QUERIES, BLOCK_D), tl.float32)
    for j in range(K * K):
        at, there = _neighbour(y, x, inside, H, W, j, 1, K)
        key = _read(key_value, at * stride, there, c, D).to(tl.float32)
        value = _read(key_value + heads * D, at * stride, there, c, D).to(tl.float32)
        logit = tl.sum(exact * key, 1) * _inverse_norm(key) + tl.load(bias + head * K * K + j).to(tl.float32)
        logit = tl.where(there, logit * LOG2E, float('-inf'))
        larger = tl.maximum(largest, logit)
        shrink, weight = tl.exp2(largest - larger), tl.exp2(logit - larger)
        weights = weights * shrink + weight
        total = total * shrink[:, None] + weight[:, None] * value
        token = tl.load(tokens + (head * D + c) * (K * K) + j, c < D, 0.0).to(tl.float32)
        more = tl.sum(unit * token[None, :], 1) + tl.load(token_bias + head * K * K + j).to(tl.float32)
        added += more[:, None] * value
        largest = larger
    for start in range(0, M, KEYS):
        m = start + tl.arange(0, KEYS)
        key = _read(units, m * (heads * D), m < M, c, D)
        value = _read(pooled, m * pooled_stride, m < M, c, D)
        place = _positions(n[:, None], m[None, :], head, H, W, M, w)
        by_position = tl.load(pooled_bias + place, inside[:, None] & (m < M)[None, :], float('-inf')).to(tl.float32)
        logit = (product(scaled, tl.trans(key)) + by_position) * LOG2E
        larger = tl.maximum(largest, tl.max(logit, 1))
        shrink, weight = tl.exp2(largest - larger), tl.exp2(logit - larger[:, None])
        weights = weights * shrink + tl.sum(weight, 1)
        total = product(weight.to(q.dtype), value, total * shrink[:, None])
        largest = larger
    total /= weights[:, None]
    place = image * H * W * heads * D + head * D + (n * (heads * D))[:, None] + c[None, :]
    mask = inside[:, None] & (c < D)[None, :]
    if KEEP:  # Of the sum, large values that are added would leave few digits.
        tl.store(mean + place, total, mask)
    tl.store(out + place, total + added, mask)
    tl.store(lse + (image * heads + head) * H * W + n, largest + tl.log2(weights), inside)


@partial(limited, num_warps=8, num_stages=2)
@triton.jit
def _aggregated_query_gradient(
    query, key_value, pooled, units, temperature, embedding, bias, tokens, token_bias, pooled_bias, means, grad, lse,
    of_query, scaled_queries, middle, neighbour_weights, sums,
    B, H, W, M, w, heads, query_stride, stride, pooled_stride,
    D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Also scaled queries, the means of the gradients of their weights, weights of neighbours and gradients of their
    logits, for other kernels; and a program's sums for the parameters."""
    image, head, first = _place(B, heads, QUERIES)
    n, c = first + tl.arange(0, QUERIES), tl.arange(0, BLOCK_D)
    y, x, inside, number = n // W, n % W, n < H * W, image * heads + head
    key_value += image * H * W * stride + head * D
    units += image * M * heads * D + head * D
    pooled += image * M * pooled_stride + (heads + head) * D
    own = image * H * W * heads * D + head * D
    q = _read(query + image * H * W * query_stride + head * D, n * query_stride, inside, c, D)
    unit, inverse, scale, exact = _scaled(q, temperature, embedding, y, x, c, head, H, W, M, D, K)
    scaled = exact.to(q.dtype)
    place, mask = own + (n * (heads * D))[:, None] + c[None, :], inside[:, None] & (c < D)[None, :]
    tl.store(scaled_queries + place, scaled, mask)
    g = tl.load(grad + place, mask, 0.0)
    upstream = g.to(tl.float32)
    mean = tl.sum(upstream * tl.load(means + place, mask, 0.0).to(tl.float32), 1)
    tl.store(middle + number * H * W + n, mean, inside)
    norm = tl.load(lse + number * H * W + n, inside, float('inf'))
    neighbour_weights += number * 2 * K * K * H * W
    # temperature, embedding, bias, tokens and token_bias of all heads one after the other
    sums += (image * tl.cdiv(H * W, QUERIES) + first // QUERIES) * (heads * (1 + D + D * K * K + 2 * K * K))
    of_embedding, of_bias = sums + heads + head * D, sums + heads * (1 + D) + head * K * K
    of_tokens = sums + heads * (1 + D + K * K)
    of_token_bias = of_tokens + heads * D * K * K + head * K * K
    of_scaled, of_unit = tl.zeros((QUERIES, BLOCK_D), tl.float32), tl.zeros((QUERIES, BLOCK_D), tl.float32)
    of_scale = tl.zeros((QUERIES,), tl.float32)
    for j in range(K * K):
        at, there = _neighbour(y, x, inside, H, W, j, 1, K)
        key = _read(key_value, at * stride, there, c, D).to(tl.float32)
        value = _read(key_value + heads * D, at * stride, there, c, D).to(tl.float32)
        key *= _inverse_norm(key)[:, None]
        cosine = tl.sum(exact * key, 1)
        logit = cosine + tl.load(bias + head * K * K + j).to(tl.float32)
        weight = tl.where(there, tl.exp2(logit * LOG2E - norm), 0.0)
        token = tl.load(tokens + (head * D + c) * (K * K) + j, c < D, 0.0).to(tl.float32)
        more = tl.sum(unit * token[None, :], 1) + tl.load(token_bias + head * K * K + j).to(tl.float32)
        of_weight = tl.sum(upstream * value, 1)
        of_logit = weight * (of_weight - mean)
        tl.store(neighbour_weights + j * H * W + n, weight + more, inside)
        tl.store(neighbour_weights + (K * K + j) * H * W + n, of_logit, inside)
        of_scale += of_logit * cosine
        of_scaled += of_logit[:, None] * key
        of_unit += of_weight[:, None] * token[None, :]
        tl.store(of_bias + j, tl.sum(of_logit, 0))
        tl.store(of_token_bias + j, tl.sum(of_weight, 0))
        tl.store(of_tokens + (head * D + c) * (K * K) + j, tl.sum(of_weight[:, None] * unit, 0), c < D)
    for start in range(0, M, KEYS):
        m = start + tl.arange(0, KEYS)
        key = _read(units, m * (heads * D), m < M, c, D)
        value = _read(pooled, m * pooled_stride, m < M, c, D)
        at = _positions(n[:, None], m[None, :], head, H, W, M, w)
        by_position = tl.load(pooled_bias + at, inside[:, None] & (m < M)[None, :], float('-inf')).to(tl.float32)
        cosine = product(scaled, tl.trans(key))
        weight = tl.exp2((cosine + by_position) * LOG2E - norm[:, None])
        of_logit = weight * (product(g, tl.trans(value)) - mean[:, None])
        of_scale += tl.sum(of_logit * cosine, 1)
        of_scaled = product(of_logit.to(q.dtype), key, of_scaled)
    heat = tl.load(temperature + head).to(tl.float32)
    tl.store(sums + head, tl.sum(of_scale, 0) / tl.maximum(_softplus(heat), 1e-30) / (1.0 + tl.exp(-heat)))
    of_embedded = of_scaled * scale[:, None]
    tl.store(of_embedding + c, tl.sum(of_embedded, 0), c < D)
    tl.store(of_query + place, _through_norm(of_unit + of_embedded, unit, inverse), mask)


@partial(limited, num_stages=2)
@triton.jit
def _aggregated_key_gradient(
    key_value, scaled_queries, grad, neighbour_weights, of_key_value,
    B, H, W, M, w, heads, query_stride, stride, pooled_stride,
    D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Of keys and values of the map, from the queries that they are neighbours of."""
    image, head, first = _place(B, heads, QUERIES)
    n, c = first + tl.arange(0, QUERIES), tl.arange(0, BLOCK_D)
    y, x, inside = n // W, n % W, n < H * W
    own = image * H * W * heads * D + head * D
    neighbour_weights += (image * heads + head) * 2 * K * K * H * W
    of_key, of_value = tl.zeros((QUERIES, BLOCK_D), tl.float32), tl.zeros((QUERIES, BLOCK_D), tl.float32)
    for j in range(K * K):
        at, there = _neighbour(y, x, inside, H, W, j, -1, K)
        scaled = _read(scaled_queries + own, at * (heads * D), there, c, D).to(tl.float32)
        upstream = _read(grad + own, at * (heads * D), there, c, D).to(tl.float32)
        weight = tl.load(neighbour_weights + j * H * W + at, there, 0.0).to(tl.float32)
        of_logit = tl.load(neighbour_weights + (K * K + j) * H * W + at, there, 0.0).to(tl.float32)
        of_key += of_logit[:, None] * scaled
        of_value += weight[:, None] * upstream
    key = _read(key_value + image * H * W * stride + head * D, n * stride, inside, c, D).to(tl.float32)
    inverse = _inverse_norm(key)
    to = of_key_value + image * H * W * 2 * heads * D + head * D + (n * (2 * heads * D))[:, None] + c[None, :]
    mask = inside[:, None] & (c < D)[None, :]
    tl.store(to, _through_norm(of_key, key * inverse[:, None], inverse), mask)
    tl.store(to + heads * D, of_value, mask)


@triton.jit
def _biases(pooled_bias, n, m, head, H, W, M, w):
    """Those of pooled tokens m and queries n, minus infinity where one is not there."""
    place = _positions(n[None, :], m[:, None], head, H, W, M, w)
    return tl.load(pooled_bias + place, (n < H * W)[None, :] & (m < M)[:, None], float('-inf')).to(tl.float32)


@triton.jit
def _weights(scaled, g, key, value, biases, lse, middle, n, N):
    """The weights (m, n) that queries n give pooled tokens m, and the gradients of their logits."""
    norm, mean = tl.load(lse + n, n < N, float('inf')), tl.load(middle + n, n < N, 0.0)
    weight = tl.exp2((product(key, tl.trans(scaled)) + biases) * LOG2E - norm[None, :])
    return weight, weight * (product(value, tl.trans(g)) - mean[None, :])


@partial(limited, num_stages=2)
@triton.jit
def _aggregated_pooled_gradient(
    pooled, units, pooled_bias, scaled_queries, grad, lse, middle, of_pooled,
    B, H, W, M, w, heads, query_stride, stride, pooled_stride,
    D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, share,
):  # fmt: skip
    """Of pooled tokens, from ``share`` tiles of queries."""
    image, head, first = _place(B, heads, KEYS)
    m, c = first + tl.arange(0, KEYS), tl.arange(0, BLOCK_D)
    own, number = image * H * W * heads * D + head * D, (image * heads + head) * H * W
    pooled += image * M * pooled_stride + head * D
    unit = _read(units + image * M * heads * D + head * D, m * (heads * D), m < M, c, D)
    value = _read(pooled + heads * D, m * pooled_stride, m < M, c, D)
    of_key, of_value = tl.zeros((KEYS, BLOCK_D), tl.float32), tl.zeros((KEYS, BLOCK_D), tl.float32)
    start = tl.program_id(1) * share * QUERIES
    for begin in range(start, tl.minimum(start + share * QUERIES, H * W), QUERIES):
        n = begin + tl.arange(0, QUERIES)
        scaled = _read(scaled_queries + own, n * (heads * D), n < H * W, c, D)
        g = _read(grad + own, n * (heads * D), n < H * W, c, D)
        biases = _biases(pooled_bias, n, m, head, H, W, M, w)
        weight, of_logit = _weights(scaled, g, unit, value, biases, lse + number, middle + number, n, H * W)
        of_value = product(weight.to(g.dtype), g, of_value)
        of_key = product(of_logit.to(g.dtype), scaled, of_key)
    key = _read(pooled, m * pooled_stride, m < M, c, D).to(tl.float32)
    inverse = _inverse_norm(key)
    of_pooled += (tl.program_id(1) * B + image) * M * 2 * heads * D + head * D
    to = of_pooled + (m * (2 * heads * D))[:, None] + c[None, :]
    mask = (m < M)[:, None] & (c < D)[None, :]
    tl.store(to, _through_norm(of_key, key * inverse[:, None], inverse), mask)
    tl.store(to + heads * D, of_value, mask)


@partial(limited, num_stages=2)
@triton.jit
def _aggregated_bias_gradient(
    pooled, units, pooled_bias, scaled_queries, grad, lse, middle, of_bias,
    B, H, W, M, w, heads, query_stride, stride, pooled_stride,
    D: tl.constexpr, K: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Of the bias of some queries and pooled tokens, from all images."""
    head = tl.program_id(0) % heads
    n, c = tl.program_id(0) // heads * QUERIES + tl.arange(0, QUERIES), tl.arange(0, BLOCK_D)
    m = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    biases = _biases(pooled_bias, n, m, head, H, W, M, w)
    total = tl.zeros((KEYS, QUERIES), tl.float32)
    for i in range(B):
        image = tl.full((), i, tl.int64)
        own, number = image * H * W * heads * D + head * D, (image * heads + head) * H * W
        key = _read(units + image * M * heads * D + head * D, m * (heads * D), m < M, c, D)
        value = _read(pooled + image * M * pooled_stride + (heads + head) * D, m * pooled_stride, m < M, c, D)
        scaled = _read(scaled_queries + own, n * (heads * D), n < H * W, c, D)
        g = _read(grad + own, n * (heads * D), n < H * W, c, D)
        _, of_logit = _weights(scaled, g, key, value, biases, lse + number, middle + number, n, H * W)
        total += of_logit
    place = _positions(n[None, :], m[:, None], head, H, W, M, w)
    tl.store(of_bias + place, total, (n < H * W)[None, :] & (m < M)[:, None])
