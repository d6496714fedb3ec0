"""GSA's operators as batched products of matrices."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import without_autocast
from ..tracing import is_tracing, is_transforming
from .table import fit_table, reach_of

#: scores in memory at a time, 4 MB of float32: more do not fit the cache of a CPU, fewer make the products slow
MAX_SCORES = 2**20
#: the same on a GPU, 512 MB in half precision: all scores of 16 images of 512 x 512, so that kernels launch once
MAX_SCORES_GPU = 2**28


def content_context_batched(key: Tensor, value: Tensor) -> Tensor:
    """Means of the values over all pixels by the keys' softmax, (B, heads, k, v), in float32 at least. In float16 the
    weights of a large map would round to zero.

    Nothing is copied if B is 1, values are contiguous, and keys are stored as (B, heads, k, H, W).
    """
    key = key.permute(0, 3, 4, 1, 2).flatten(3)  # (B, heads, k, H * W)
    exact = torch.promote_types(key.dtype, torch.float32)
    with without_autocast(key):
        return key.to(exact).softmax(-1) @ value.flatten(1, 2).transpose(1, 2).to(exact)


def content_product(query: Tensor, context: Tensor) -> Tensor:
    """What each query takes from the context, (B, H, W, heads, v), in the dtype of the query, or float32 for float16.

    Nothing is copied if B is 1 and queries are contiguous.
    """
    by_head = query.flatten(1, 2).transpose(1, 2)  # (B, heads, H * W, k)
    return in_range(torch.matmul, by_head, context).transpose(1, 2).unflatten(1, query.shape[1:3])


def axial_attention_batched(
    query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str, key: Tensor | None = None, softmax: bool = False
) -> Tensor:
    """The same sums as batched products, over the positions and over the lines, without a re-indexing tensor.

    The backward pass computes the scores again. If there are many, both passes work on blocks of lines.
    """
    length = query.shape[dim]
    index = torch.arange(length, device=table.device)
    offset = index - index[:, None]
    positions = F.embedding(offset + length - 1, fit_table(table, length, beyond).to(query.dtype))
    reach = reach_of(table, length, beyond)
    far = None if reach is None else offset.abs() > reach
    axial_sum = _axial_sum if is_transforming() else _AxialSum.apply
    return axial_sum(query, value.to(query.dtype), positions, key, far, reach, dim, softmax)


def _axial_sum(
    query: Tensor,
    value: Tensor,
    positions: Tensor,
    key: Tensor | None,
    far: Tensor | None,
    reach: int | None,
    dim: int,
    softmax: bool,
) -> Tensor:
    """The result of ``_AxialSum``, of all lines at once."""
    scores = _scores(query, positions, key, far, dim, softmax)
    return _from_lines(along_lines(scores.transpose(0, 1), _by_line(value, dim), reach), value.shape, dim)


class _AxialSum(torch.autograd.Function):
    """``sum_i (query[x] . (positions[x, i] + key[i])) value[i]`` along dimension 1 or 2 of maps; scores are not kept.

    query, key: (B, H, W, heads, k); value: (B, H, W, heads, v); positions: (A, A, k) and far: (A, A), where A is H or
    W; far: that pixels are more than ``reach`` apart; key, far and reach may be None. Inside, queries are (A, lines,
    k), values, keys and gradients (lines, A, v), scores (A, lines, A), with the lines of all samples and heads.
    """

    @staticmethod
    def forward(ctx, query: Tensor, value: Tensor, positions: Tensor, *others: object) -> Tensor:
        key, far, *numbers = others
        ctx.save_for_backward(query, value, positions, key, far)
        ctx.numbers = reach, dim, softmax = numbers
        out = torch.empty_like(value)
        for block in _blocks(query, dim):
            k = None if key is None else key[block]
            out[block] = _axial_sum(query[block], value[block], positions, k, far, reach, dim, softmax)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, value, positions, key, far = ctx.saved_tensors
        reach, dim, softmax = ctx.numbers
        grad_query, grad_value = torch.empty_like(query), torch.empty_like(value)
        grad_key = None if key is None else torch.empty_like(key)
        grad_positions = torch.zeros_like(positions, dtype=torch.promote_types(positions.dtype, torch.float32))
        for block in _blocks(query, dim):
            shape, q, g = query[block].shape, _by_position(query[block], dim), _by_line(grad[block], dim)
            v = value[block]
            scores = _scores(query[block], positions, None if key is None else key[block], far, dim, softmax)
            grad_value[block] = _from_lines(along_lines(scores.permute(1, 2, 0), g, reach), v.shape, dim)
            grad_scores = g.bmm(_by_line(v, dim).transpose(1, 2)).transpose(0, 1)
            if far is not None:
                grad_scores = grad_scores.masked_fill(far[:, None], 0)
            if softmax:
                grad_scores = scores * (grad_scores - (scores * grad_scores).sum(-1, keepdim=True))
            if softmax and far is not None:  # zero times NaN
                grad_scores = grad_scores.masked_fill(far[:, None], 0)
            grad_query[block] = _from_lines(grad_scores.bmm(positions).transpose(0, 1), shape, dim)
            grad_positions += grad_scores.transpose(1, 2).bmm(q)
            if key is not None:
                by_line = grad_scores.transpose(0, 1)
                grad_query[block] += _from_lines(along_lines(by_line, _by_line(key[block], dim), reach), shape, dim)
                grad_key[block] = _from_lines(
                    along_lines(by_line.transpose(1, 2), q.transpose(0, 1), reach), shape, dim
                )
        return grad_query, grad_value, grad_positions.to(positions.dtype), grad_key, None, None, None, None


def along_lines(weights: Tensor, x: Tensor, reach: int | None) -> Tensor:
    """The products ``weights @ x``, where weights of pixels more than ``reach`` apart are 0, or NaN of a whole row.

    A product with zero would spread NaN and infinity of x to the whole line. So they are left out, and put where they
    reach, as NaN.

    Args:
        weights: (lines, A, A).
        x: (lines, A, c).
    """
    if reach is None:
        return weights @ x
    finite = x.abs() < math.inf  # isfinite without IsInf, which TensorRT 8.4 lacks
    count = F.pad((~finite).float(), (0, 0, reach + 1, reach)).cumsum(1)
    reached = count[:, 2 * reach + 1 :] > count[:, : -2 * reach - 1]
    out = weights @ x.masked_fill(~finite, 0)
    return out + torch.zeros_like(out).masked_fill(reached, math.nan)


def _scores(
    query: Tensor, positions: Tensor, key: Tensor | None, far: Tensor | None, dim: int, softmax: bool
) -> Tensor:
    """What ``_AxialSum`` multiplies values with, (A, lines, A)."""
    q = _by_position(query, dim)
    scores = q.bmm(positions.transpose(1, 2))
    if key is not None:
        scores = scores + q.transpose(0, 1).bmm(_by_line(key, dim).transpose(1, 2)).transpose(0, 1)
    if not softmax:
        return scores if far is None else scores.masked_fill(far[:, None], 0)
    if far is None:
        return scores.softmax(-1)
    # The softmax of NaN is NaN for pixels that are far, too.
    return scores.masked_fill(far[:, None], -math.inf).softmax(-1).masked_fill(far[:, None], 0)


def _blocks(query: Tensor, dim: int) -> list[tuple[slice, ...]]:
    """Indices of parts of a map that have as many lines as ``MAX_SCORES`` allows.

    One part if all lines fit, or while a graph is traced: the number of parts would bind the graph to one size.
    """
    B, _, _, heads, _ = query.shape
    A, lines = query.shape[dim], query.shape[3 - dim]
    most = MAX_SCORES_GPU if query.is_cuda else MAX_SCORES
    if B * heads * A * A * lines <= most or is_tracing():
        return [(slice(None),)]
    step = max(1, most // (B * heads * A * A))
    return [(slice(None),) * (3 - dim) + (slice(i, i + step),) for i in range(0, lines, step)]


def _by_position(x: Tensor, dim: int) -> Tensor:
    """(B, H, W, heads, k) -> (A, lines, k), a view where the layout allows."""
    return x.movedim(dim, 0).flatten(1, 3)


def _by_line(x: Tensor, dim: int) -> Tensor:
    """(B, H, W, heads, v) -> (lines, A, v), a view where the layout allows."""
    return x.movedim(dim, 3).flatten(0, 2)


def _from_lines(x: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """The inverse of ``_by_line``, a view."""
    return x.unflatten(0, (shape[0], shape[3 - dim], shape[3])).movedim(3, dim)


def in_range(attend: Callable[[Tensor, Tensor], Tensor], query: Tensor, value: Tensor) -> Tensor:
    """``attend(query, value)``, a function linear in both, in the dtype of the query; for float16 without overflow, and
    returned in float32.

    Scales are powers of two, so they do not round. Each sample has its own, so samples do not affect each other.
    """
    if query.dtype != torch.float16:
        return attend(query, value.to(query.dtype))
    scales = []
    for x in (query, value):
        numbers = x.detach().nan_to_num(0, 0, 0)  # NaN or infinity of one pixel must not become the scale of all
        largest = torch.linalg.vector_norm(
            numbers, float('inf'), tuple(range(1, x.dim())), True, dtype=torch.promote_types(x.dtype, torch.float32)
        )
        scales.append(largest.clamp(min=2.0**-24).log2().ceil().exp2())  # the smallest float16
    out = attend(*((x / scale).to(query.dtype) for x, scale in zip((query, value), scales)))
    return out * (scales[0] * scales[1]).view(-1, *[1] * (out.dim() - 1))
