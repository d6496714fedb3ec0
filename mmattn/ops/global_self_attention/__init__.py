"""Global self-attention: equations 4 to 7 of "Global Self-Attention Networks for Image Recognition".

Layers call ``content_attention`` and ``axial_attention``. Every backend takes the arguments of the reference, which
tests compare with. Maps are (B, H, W, heads, channels), tables (2L - 1, channels).

The result is a sum over pixels of products of projections, which no norm bounds. It may be too large for float16, whose
largest number is 65504. So if queries are float16, queries and values are scaled to at most 1 before the products, and
the result is scaled back in the dtype of the given values, or in another one. 'triton' does so in its kernels.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...arguments import check_choice
from .. import library
from ..backend import CannotServe, check_maps, check_triton, named_backend, triton_multiplies, without_autocast
from ..tracing import is_exporting
from .batched import axial_attention_batched, content_context_batched, content_product, in_range
from .cpp import axial_attention_cpp
from .exported import axial_attention_exported
from .reference import axial_attention_reference, check_lines, content_attention_reference
from .table import fit_table

__all__ = ['BEYOND', 'axial_attention', 'content_attention', 'content_context', 'projected_attention']

#: what to do with pixels that are farther apart than the table of relative positions reaches
BEYOND = ('mask', 'stretch')
#: channels of a head that the kernels of 'triton' take at most
MAX_WIDTH = 64


def content_attention(query: Tensor, key: Tensor, value: Tensor, backend: str | None = None) -> Tensor:
    """Attend to all pixels by their content (equation 4), at a cost linear in their number.

    Args:
        query: (B, H, W, heads, k).
        key: (B, H, W, heads, k).
        value: (B, H, W, heads, v).
        backend: 'reference', 'batched' or 'triton', see :func:`content_context`. None chooses the fastest that can
            serve. 'exported' and 'cpp' belong to axial attention; here they are 'batched', too.

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
    backend = ('triton' if uses_kernels(key, value) else 'batched') if backend is None else backend
    return named_backend(CONTENT_BACKENDS, backend)(query, key, value).to(value.dtype)


def content_context(key: Tensor, value: Tensor, backend: str | None = None) -> Tensor:
    """What content attention multiplies queries with: for each channel of the keys, the mean of the values over all
    pixels, whose weights are a softmax of that channel.

    Args:
        key: (B, H, W, heads, k).
        value: (B, H, W, heads, v).
        backend: 'batched', 'triton' (GPUs with tensor cores for bfloat16, 16 bits, at most 64 channels of a head), or
            another of :func:`axial_attention`, which is 'batched' here. 'triton' has no second derivatives, and is not
            for torch.func. None chooses the fastest that can serve.

    Returns:
        (B, heads, k, v), in float32 at least.

    Raises:
        ValueError: if the backend is unknown, or cannot run here.
    """
    check_maps(key=key, value=value)
    backend = ('triton' if uses_kernels(key, value) else 'batched') if backend is None else backend
    named_backend(CONTENT_BACKENDS, backend)
    return _context_triton(key, value) if backend == 'triton' else content_context_batched(key, value)


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
    context: Tensor | None = None,
    norm: tuple[Tensor, Tensor, Tensor, Tensor, float] | None = None,
    dtype: torch.dtype | None = None,
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
        backend: 'reference', 'batched', 'exported' (for ONNX), 'cpp' (float32 on the CPU) or 'triton' (GPUs with tensor
            cores for bfloat16, 16 bits, at most 64 channels of a head; sums in float32). The last three have neither
            keys nor softmax. The last two have no second derivatives, and are not for torch.func. With 'triton', NaN
            and infinity reach up to 15 pixels farther than the table. None chooses the fastest that can serve.
        key: (B, H, W, heads, k) or None.
        softmax: of the products, over the pixels that are attended to.
        context: of :func:`content_context`, or None. Its product with the queries, which is content attention, is added
            (equation 8).
        norm: mean, variance, weight and bias, (heads * v) each, and epsilon of a batch norm in inference, which is
            applied to the result, or None. 'triton' has no gradients of these.
        dtype: of the result; None: that of ``value``.

    Returns:
        (B, H, W, heads, v). With keys or softmax, computed in float32 at least.

    Raises:
        ValueError: if shapes do not fit each other, or an argument is wrong; the message names it.
    """
    check_maps(query=query, value=value, table=table, key=key)
    check_lines(query, value, table, dim)
    if key is not None and key.shape != query.shape:
        raise ValueError(f'key must be as query, {tuple(query.shape)}, not {tuple(key.shape)}')
    check_choice('beyond', beyond, BEYOND)
    positional = key is None and not softmax
    backend = fastest(query, value, positional) if backend is None else backend
    function = named_backend(AXIAL_BACKENDS, backend)
    dtype = dtype or value.dtype
    if not positional:
        if backend in POSITIONAL_BACKENDS:
            raise ValueError(f"backend '{backend}' has neither keys nor softmax along lines: choose backend 'batched'")
        exact = torch.promote_types(query.dtype, torch.float32)
        key = None if key is None else key.to(exact)
        with without_autocast(query):
            out = function(query.to(exact), value.to(exact), table.to(exact), dim, beyond, key, softmax)
    elif backend == 'triton':
        return _triton(query, value, table, dim, beyond, context, norm, dtype).to(dtype)
    else:
        out = in_range(lambda query, value: function(query, value, table, dim, beyond), query, value)
    if context is not None:
        out = out + content_product(query, context)
    if norm is not None:
        mean, var, weight, bias, eps = norm
        out = F.batch_norm(out.flatten(3).permute(0, 3, 1, 2), mean, var, weight, bias, eps=eps)
        out = out.permute(0, 2, 3, 1).view_as(value)
    return out.to(dtype)


def projected_attention(
    maps: Tensor,
    columns: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
    beyond: str = 'mask',
    backend: str | None = None,
    *,
    norm: nn.BatchNorm2d | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """What follows the projections (equations 4 to 8): attention along columns, batch norm, attention along rows, and
    content attention, which is added.

    Args:
        maps: (B, H, W, 3, heads, d), queries, values and keys.
        columns: (2L - 1, d), the table of relative positions along columns.
        rows: (2L - 1, d), that along rows.
        weight: (heads * d), of the norm.
        bias: (heads * d), of the norm.
        eps: added to the variance.
        beyond: 'mask' or 'stretch', see :func:`axial_attention`.
        backend: 'reference' or 'triton', which is one function of autograd, for training on GPUs with tensor cores for
            bfloat16, of 16 bits and at most 64 channels of a head. It has no second derivatives, and is not for
            torch.func. None chooses the fastest that can serve.
        norm: the module with this weight and bias, whose running statistics follow in training, and take the place of
            the batch's in evaluation; None: statistics of the batch.
        dtype: of the result and of the map between columns and rows; None: that of the maps.

    Returns:
        (B, H, W, heads, d).

    Raises:
        ValueError: if the backend is unknown, or cannot serve the maps.
    """
    check_maps(maps=maps, columns=columns, rows=rows, weight=weight, bias=bias)
    backend = ('triton' if uses_kernels(maps, maps) else 'reference') if backend is None else backend
    function = named_backend(PROJECTED_BACKENDS, backend)
    if beyond == 'stretch':
        columns, rows = (fit_table(table, length, beyond) for table, length in zip((columns, rows), maps.shape[1:3]))
    return function(maps, columns, rows, weight, bias, eps, norm, dtype or maps.dtype)


def uses_kernels(query: Tensor, value: Tensor) -> bool:
    """Whether 'triton' is the fastest backend of content attention and of attention along lines by position."""
    return triton_multiplies(query) and max(query.shape[-1], value.shape[-1]) <= MAX_WIDTH


def fastest(query: Tensor, value: Tensor, positional: bool) -> str:
    """The backend that None stands for, of :func:`axial_attention`; positional: it has neither keys nor a softmax."""
    if positional and library.takes(query, value):
        return 'cpp'
    if positional and uses_kernels(query, value):
        return 'triton'
    return 'exported' if positional and is_exporting() else 'batched'


def _triton(
    query: Tensor,
    value: Tensor,
    table: Tensor,
    dim: int,
    beyond: str,
    context: Tensor | None = None,
    norm: tuple[Tensor, Tensor, Tensor, Tensor, float] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``triton``, imported when it is needed: Triton is not everywhere."""
    _check_kernels(query, value)
    from .triton import axial_attention_triton

    fitted = table if beyond == 'mask' else fit_table(table, query.shape[dim], beyond)
    if query.dtype != torch.float16:
        value, dtype = value.to(query.dtype), query.dtype
    return axial_attention_triton(query, value, fitted, dim, context, norm, dtype)


def _context_triton(key: Tensor, value: Tensor) -> Tensor:
    _check_kernels(key, value)
    from .triton_content import content_context_triton

    return content_context_triton(key, value)


def _projected_reference(
    maps: Tensor,
    columns: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    norm: nn.BatchNorm2d | None,
    dtype: torch.dtype,
) -> Tensor:
    query, value, key = maps.unbind(3)
    out = axial_attention(query, value, columns, 1, backend='reference', dtype=dtype)
    pixels = out.flatten(3).permute(0, 3, 1, 2)
    pixels = F.batch_norm(pixels, None, None, weight, bias, True, 0.0, eps) if norm is None else norm(pixels)
    out = pixels.permute(0, 2, 3, 1).view_as(out)
    out = axial_attention(query, out, rows, 2, backend='reference', dtype=dtype)
    return out + content_attention(query, key, value.to(dtype), 'reference')


def _projected_triton(maps: Tensor, *others: object) -> Tensor:
    _check_kernels(maps, maps)
    from .triton_projected import projected_attention_triton

    return projected_attention_triton(maps, *others)


def _check_kernels(query: Tensor, value: Tensor) -> None:
    check_triton(query, products=True)
    width = max(query.shape[-1], value.shape[-1])
    if width > MAX_WIDTH:
        raise CannotServe(f"backend 'triton' takes at most {MAX_WIDTH} channels of a head, not {width}")


def _content_batched(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return content_product(query, content_context_batched(key, value))


def _content_triton(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return content_product(query, _context_triton(key, value))


CONTENT_BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': content_attention_reference,
    'batched': _content_batched,
    'exported': _content_batched,
    'cpp': _content_batched,
    'triton': _content_triton,
}
AXIAL_BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': axial_attention_reference,
    'batched': axial_attention_batched,
    'exported': axial_attention_exported,
    'cpp': axial_attention_cpp,
    'triton': _triton,
}
PROJECTED_BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': _projected_reference, 'triton': _projected_triton}
#: those of positional attention alone: they take neither keys nor a softmax
POSITIONAL_BACKENDS = ('exported', 'cpp', 'triton')
