"""Global self-attention: equations 4 to 7 of "Global Self-Attention Networks for Image Recognition".

Layers call ``content_attention`` and ``axial_attention``. Every backend takes the arguments of the reference, which
tests compare with. Maps are (B, H, W, heads, channels), tables (2L - 1, channels).

The result is a sum over pixels of products of projections, which no norm bounds. It may be too large for float16, whose
largest number is 65504. So if queries are float16, queries and values are scaled to at most 1 before the products, and
the result is scaled back in the dtype of the given values.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...arguments import check_choice
from .. import library
from ..backend import (
    CannotServe,
    check_maps,
    check_triton,
    named_backend,
    on_device,
    triton_multiplies,
    without_autocast,
)
from ..tracing import is_exporting
from .batched import axial_attention_batched, content_attention_batched, in_range
from .cpp import axial_attention_cpp
from .exported import axial_attention_exported
from .reference import axial_attention_reference, check_lines, content_attention_reference
from .table import fit_table

__all__ = ['BEYOND', 'axial_attention', 'content_attention']

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
    function = named_backend(CONTENT_BACKENDS, 'batched' if backend is None else backend)
    return function(query, key, value).to(value.dtype)


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
        backend: 'reference', 'batched', 'exported' (for ONNX), 'cpp' (float32 on the CPU) or 'triton' (GPUs with tensor
            cores for bfloat16, 16 bits, at most 64 channels of a head; sums in float32). The last three have neither
            keys nor softmax. The last two have no second derivatives, and are not for torch.func. With 'triton', NaN
            and infinity reach up to 15 pixels farther than the table. None chooses the fastest that can serve.
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
    backend = fastest(query, value, positional) if backend is None else backend
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

    return in_range(attend, query, value).to(value.dtype)


def fastest(query: Tensor, value: Tensor, positional: bool) -> str:
    """The backend that None stands for, of :func:`axial_attention`; positional: it has neither keys nor a softmax."""
    if positional and library.takes(query, value):
        return 'cpp'
    if positional and triton_multiplies(query) and max(query.shape[-1], value.shape[-1]) <= MAX_WIDTH:
        return 'triton'
    return 'exported' if positional and is_exporting() else 'batched'


def _triton(query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str) -> Tensor:
    """``triton``, imported when it is needed: Triton is not everywhere."""
    check_triton(query, products=True)
    widths = query.shape[-1], value.shape[-1]
    if max(widths) > MAX_WIDTH:
        raise CannotServe(f"backend 'triton' takes at most {MAX_WIDTH} channels of a head, not {max(widths)}")
    from .triton import axial_attention_triton

    fitted = table if beyond == 'mask' else fit_table(table, query.shape[dim], beyond)
    with on_device(query):
        return axial_attention_triton(query, value.to(query.dtype), fitted, dim)


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
