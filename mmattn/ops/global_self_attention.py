"""Global self-attention: equations 4 to 7 of "Global Self-Attention Networks for Image Recognition".

Layers call ``content_attention`` and ``axial_attention``. Every backend takes the arguments of the reference, which
tests compare with. Maps are (B, H, W, heads, channels), tables (2L - 1, channels).

The result is a sum over pixels of products of projections, which no norm bounds. It may be too large for float16, whose
largest number is 65504. So if queries are float16, queries and values are scaled to at most 1 before the products, and
the result is scaled back in the dtype of the given values.
"""

import math
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import check_choice
from . import library
from .axial_cpu import axial_attention_cpu, check_lines
from .backend import check_maps, check_triton, choose_backend, named_backend, on_device, without_autocast
from .sparse import sparse_product
from .tracing import is_exporting, is_tracing, is_transforming

#: what to do with pixels that are farther apart than the table of relative positions reaches
BEYOND = ('mask', 'stretch')
#: scores in memory at a time, 4 MB of float32: more do not fit the cache of a CPU, fewer make the products slow
MAX_SCORES = 2**20
#: the same on a GPU, 128 MB: a part of few scores takes less time than the launch of its kernels
MAX_SCORES_GPU = 2**25


def content_attention(query: Tensor, key: Tensor, value: Tensor, backend: str | None = None) -> Tensor:
    """Attend to all pixels by their content (equation 4), at a cost linear in their number.

    Args:
        query: (B, H, W, heads, k).
        key: (B, H, W, heads, k).
        value: (B, H, W, heads, v).
        backend: 'reference' or 'batched'. None is 'batched'. 'exported', 'cpp' and 'triton' belong to axial attention;
            here they are 'batched', too.

    Returns:
        (B, H, W, heads, v), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown.
    """
    check_maps(query=query, key=key, value=value)
    if query.dim() != 5 or key.shape != query.shape or value.shape[:-1] != query.shape[:-1]:
        raise ValueError(
            f'query and key must be (B, H, W, heads, k) and value (B, H, W, heads, v), not '
            f'{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}'
        )
    if backend is None:
        backend = choose_backend('content_attention', ('batched',), query.device, query.dtype)
    function = named_backend(CONTENT_BACKENDS, backend)
    return function(query, key, value).to(value.dtype)


def content_attention_reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Equation 4 as it is written: the softmax of the keys is over all pixels."""
    weights = key.flatten(1, 2).softmax(1).view_as(key)
    context = torch.einsum('bhwnk,bhwnv->bnkv', weights, value.to(key.dtype))
    return torch.einsum('bhwnk,bnkv->bhwnv', query, context)


def content_attention_batched(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same as products of matrices per head, for half precision too: the softmax and the context, a mean over all
    pixels, are computed in float32 at least. In float16 the weights of a large map would round to zero.

    Nothing is copied if B is 1, queries and values are contiguous, and keys are stored as (B, heads, k, H, W).
    """
    H, W = query.shape[1:3]
    query, value = (x.flatten(1, 2).transpose(1, 2) for x in (query, value))  # (B, heads, H * W, channels)
    key = key.permute(0, 3, 4, 1, 2).flatten(3)  # (B, heads, k, H * W)
    exact = torch.promote_types(key.dtype, torch.float32)
    with without_autocast(key):
        context = key.to(exact).softmax(-1) @ value.to(exact)
    return _in_range(torch.matmul, query, context).transpose(1, 2).unflatten(1, (H, W))


def axial_attention(
    query: Tensor,
    value: Tensor,
    table: Tensor,
    dim: int,
    beyond: str = 'mask',
    backend: str | None = None,
    *,
    key: Tensor | None = None,
    softmax: bool = False,
) -> Tensor:
    r"""Attend along columns or rows by relative position (equations 2 and 5 to 7). For columns,

    .. math::
        Y_{yx} = \sum_{i=0}^{H-1} (Q_{yx} \cdot R_{i-y}) \, V_{ix},

    and likewise for rows. There is no softmax. :math:`R_\delta` is row :math:`\delta + L - 1` of the table. With keys,
    :math:`Q_{yx} \cdot (K_{ix} + R_{i-y})` takes the place of the product (table 2, "axial content and positional").

    On maps shorter than L, the outer rows of the table are not used, as in the paper. On longer maps:

    - 'mask': pixels farther apart than L - 1 do not attend to each other.
    - 'stretch': the table is interpolated linearly to the map's length l, with its ends aligned, and multiplied by
      L / l, so that the sum over more pixels keeps its size.

    Args:
        query: (B, H, W, heads, k).
        value: (B, H, W, heads, v).
        table: (2L - 1, k) embeddings of the relative positions 1 - L to L - 1, shared by the heads.
        dim: 1 attends along columns, 2 along rows.
        beyond: 'mask' or 'stretch'.
        backend: 'reference', 'batched', 'exported' (for ONNX), 'cpp' (float32 on the CPU) or 'triton' (GPUs, sums in
            float32). The last three have neither keys nor softmax. The last two have no second derivatives, and are not
            for torch.func. None chooses by device and dtype, and never 'triton'.
        key: (B, H, W, heads, k) or None.
        softmax: of the products, over the pixels that are attended to.

    Returns:
        (B, H, W, heads, v), of the dtype of ``value``. With keys or softmax, computed in float32 at least.

    Raises:
        ValueError: if shapes do not fit each other, or an argument is wrong; the message names it.
    """
    check_maps(query=query, value=value, table=table, key=key)
    check_lines(query, value, table, dim)
    if key is not None and key.shape != query.shape:
        raise ValueError(f'key must be as query, {tuple(query.shape)}, not {tuple(key.shape)}')
    check_choice('beyond', beyond, BEYOND)
    positional = key is None and not softmax
    backend = _fastest(query, value, positional) if backend is None else backend
    function = named_backend(AXIAL_BACKENDS, backend)
    if not positional:
        if backend in POSITIONAL_BACKENDS:
            raise ValueError(f"backend '{backend}' has neither keys nor softmax along lines: choose backend 'batched'")
        exact = torch.promote_types(query.dtype, torch.float32)
        key = None if key is None else key.to(exact)
        with without_autocast(query):
            out = function(query.to(exact), value.to(exact), table.to(exact), dim, beyond, key, softmax)
        return out.to(value.dtype)

    def attend(query: Tensor, value: Tensor) -> Tensor:
        return function(query, value, table, dim, beyond)

    return _in_range(attend, query, value).to(value.dtype)


def axial_attention_reference(
    query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str, key: Tensor | None = None, softmax: bool = False
) -> Tensor:
    """Equations 5 to 7 as they are written, along columns (dim 1) or rows (dim 2).

    A product with the re-indexing tensor would spread NaN and infinity of one position to all, because 0 * inf is NaN.
    """
    if dim == 2:
        query, value = query.transpose(1, 2), value.transpose(1, 2)
        key = None if key is None else key.transpose(1, 2)
    length = query.shape[1]
    if beyond == 'stretch' and length > len(table) // 2 + 1:
        table = fit_table(table, length, beyond)
    L = len(table) // 2 + 1
    index = torch.arange(length, device=table.device)
    offset = index - index[:, None]  # (x, i)
    far = (offset.abs() >= L)[..., None]
    positions = table[offset.clamp(1 - L, L - 1) + L - 1].masked_fill(far, 0).to(query.dtype)  # eq. 5 and 6, (x, i, k)
    scores = torch.einsum('bxynk,xik->bxyin', query, positions)  # eq. 7
    far = far[:, None]  # (x, 1, i, 1)

    def near(x: Tensor) -> Tensor:
        """(b, i, y, n, c) -> (b, x, y, i, n, c) of the pixels that a query attends to, or all."""
        return x.transpose(1, 2)[:, None].masked_fill(far[..., None], 0)

    if key is not None:
        scores = scores + torch.einsum('bxynk,bxyink->bxyin', query, near(key))
    scores = scores.masked_fill(far, -math.inf).softmax(3) if softmax else scores.masked_fill(far, 0)
    out = torch.einsum('bxyin,bxyinv->bxynv', scores, near(value.to(query.dtype)))
    return out.transpose(1, 2) if dim == 2 else out


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
    reach = _reach(table, length, beyond)
    far = None if reach is None else offset.abs() > reach
    axial_sum = _axial_sum if is_transforming() else _AxialSum.apply
    return axial_sum(query, value.to(query.dtype), positions, key, far, reach, dim, softmax)


def axial_attention_exported(query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str) -> Tensor:
    """The products of 'batched', with lines ordered by head: so runtimes copy whole vectors of a head, if at all."""
    length = query.shape[dim]
    index = torch.arange(length, device=table.device)
    positions = F.embedding(index - index[:, None] + length - 1, fit_table(table, length, beyond).to(query.dtype))
    order = (0, 3, 3 - dim, dim, 4)  # (B, heads, lines, A, channels)
    query, value = query.permute(order), value.to(query.dtype).permute(order)
    scores = query.movedim(3, 0).flatten(1, 3) @ positions.mT  # (A, B * heads * lines, A)
    out = _along_lines(scores.transpose(0, 1), value.flatten(0, 2), _reach(table, length, beyond))
    return out.unflatten(0, value.shape[:3]).permute([order.index(i) for i in range(5)])


def axial_attention_cpp(query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str) -> Tensor:
    """The same sums in C++, whose scores stay in the cache."""
    library.check_takes(query, value)
    reach = len(table) // 2 if beyond == 'mask' else sys.maxsize
    return axial_attention_cpu(query, value, fit_table(table, query.shape[dim], beyond).float(), dim, reach)


def _triton(query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str) -> Tensor:
    """``axial_triton``, imported when it is needed: Triton is not everywhere."""
    check_triton(value)
    from .axial_triton import axial_attention_triton

    fitted = fit_table(table, query.shape[dim], beyond).to(query.dtype)
    with on_device(query):
        return axial_attention_triton(
            query, value.to(query.dtype), fitted, dim, _reach(table, query.shape[dim], beyond)
        )


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
    return _from_lines(_along_lines(scores.transpose(0, 1), _by_line(value, dim), reach), value.shape, dim)


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
            grad_value[block] = _from_lines(_along_lines(scores.permute(1, 2, 0), g, reach), v.shape, dim)
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
                grad_query[block] += _from_lines(_along_lines(by_line, _by_line(key[block], dim), reach), shape, dim)
                grad_key[block] = _from_lines(
                    _along_lines(by_line.transpose(1, 2), q.transpose(0, 1), reach), shape, dim
                )
        return grad_query, grad_value, grad_positions.to(positions.dtype), grad_key, None, None, None, None


def _along_lines(weights: Tensor, x: Tensor, reach: int | None) -> Tensor:
    """The products ``weights @ x``, where weights of pixels more than ``reach`` apart are 0, or NaN of a whole row.

    A product with zero would spread NaN and infinity of x to the whole line. So they are left out, and put where they
    reach, as NaN.

    Args:
        weights: (lines, A, A).
        x: (lines, A, c).
    """
    if reach is None:
        return weights @ x
    finite = x.isfinite()
    count = F.pad((~finite).to(torch.int32), (0, 0, reach + 1, reach)).cumsum(1)
    reached = count[:, 2 * reach + 1 :] > count[:, : -2 * reach - 1]
    out = weights @ x.masked_fill(~finite, 0)
    return out + torch.zeros_like(out).masked_fill(reached, math.nan)


def _reach(table: Tensor, length: int, beyond: str) -> int | None:
    """The largest distance of pixels that attend to each other; None if there is none. In a graph, lines may be of any
    length."""
    reach = len(table) // 2
    return reach if beyond == 'mask' and (is_tracing() or length > reach + 1) else None


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


def _in_range(attend: Callable[[Tensor, Tensor], Tensor], query: Tensor, value: Tensor) -> Tensor:
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


def fit_table(table: Tensor, length: int, beyond: str) -> Tensor:
    """A table (2L - 1, k) fitted to lines of length l, (2l - 1, k), as :func:`axial_attention` says."""
    L = len(table) // 2 + 1
    if not is_tracing() and (length <= L or beyond == 'mask'):
        return F.pad(table, (0, 0, length - L, length - L))  # negative: cropped
    # One formula for shorter and longer lines, so that one graph serves all sizes: a product with the weights of linear
    # interpolation. F.interpolate raises an error on a GPU in deterministic mode. Rows that are gathered by a
    # computed index take torch.compile minutes, because it simplifies the index for each table.
    exact = torch.promote_types(table.dtype, torch.float32)
    offset = torch.arange(2 * length - 1, device=table.device, dtype=exact) - (length - 1)
    row = offset + (L - 1)
    if beyond == 'stretch':
        reach = offset[-1].clamp(min=max(L, 2) - 1)  # the offset of the last row of the table
        row = (offset + reach) * (L - 1) / reach
    distance = (row[:, None] - torch.arange(2 * L - 1, device=table.device, dtype=exact)).abs()
    with without_autocast(table):
        weights = (1 - distance).clamp(min=0).to(table.dtype)
        fitted = weights @ table if is_tracing() or is_transforming() else sparse_product(weights, table)
    return fitted * (L / (offset[-1] + 1).clamp(min=L)).to(table.dtype) if beyond == 'stretch' else fitted


CONTENT_BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': content_attention_reference,
    'batched': content_attention_batched,
    'exported': content_attention_batched,
    'cpp': content_attention_batched,
    'triton': content_attention_batched,
}
AXIAL_BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': axial_attention_reference,
    'batched': axial_attention_batched,
    'exported': axial_attention_exported,
    'cpp': axial_attention_cpp,
    'triton': _triton,
}
#: those of positional attention alone: they take neither keys nor a softmax
POSITIONAL_BACKENDS = ('exported', 'cpp', 'triton')


def _fastest(query: Tensor, value: Tensor, positional: bool) -> str:
    """The backend for a device and dtype."""
    names: tuple[str, ...] = ('batched',)
    if positional and library.takes(query, value):
        names = ('cpp', 'batched')
    elif positional and is_exporting():
        names = ('exported',)
    case = (1, 5, 6, 2, 8), (1, 5, 6, 2, 8), (9, 8)
    return choose_backend('axial_attention', names, query.device, query.dtype, _both_ways, case)


def _both_ways(query: Tensor, value: Tensor, table: Tensor, backend: str) -> Tensor:
    """``axial_attention`` along columns and along rows."""
    return torch.cat([axial_attention(query, value, table, dim, backend=backend) for dim in (1, 2)])
