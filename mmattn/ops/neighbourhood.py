"""Neighbourhood attention: "Neighborhood Attention Transformer", and with dilation "Dilated Neighborhood Attention
Transformer".

Layers call ``neighbourhood_attention``. Every backend takes the arguments of ``neighbourhood_attention_reference``,
which tests compare with.

FlexAttention of torch is not among them: on the CPU it has no backward pass, and on a GPU its mask of blocks is for one
size of map.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import library
from .backend import (
    HALF_OR_SINGLE,
    HAS_TRITON,
    check_maps,
    check_triton,
    choose_backend,
    named_backend,
    on_device,
    without_autocast,
)
from .elsa_cpu import within
from .neighbourhood_cpu import beyond_of, check_attention, neighbourhood_attention_cpu
from .tracing import is_exporting, is_transforming


def neighbourhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    kernel_size: int,
    dilation: int = 1,
    dropout_p: float = 0.0,
    backend: str | None = None,
    *,
    beyond: Tensor | None = None,
) -> Tensor:
    r"""Attend to the k x k nearest pixels.

    .. math::
        f_i = \sum_{j \in \Theta_i} \mathrm{softmax}_j\Big(\frac{q_i k_j}{\sqrt{d}} + b_{j-i}\Big) v_j

    On each axis, the pixels with the same remainder modulo the dilation form a line. The neighbours of a pixel are the
    k pixels of its line around it; near an end, the first or last k. There is no padding, with one exception: an axis
    shorter than k * dilation is continued up to that length, at the bottom or the right, by pixels ``beyond``.

    Args:
        query, key, value: (B, H, W, heads, d).
        bias: (heads, 2k - 1, 2k - 1) by relative position, in steps of the dilation: row and column of the neighbour
            minus those of the pixel, plus k - 1. None means zeros.
        kernel_size: k, odd.
        dilation: distance of neighbours, in pixels.
        dropout_p: probability of dropping an attention weight.
        backend: 'reference', 'cpp' (the CPU, in float32) or 'triton' (GPUs, in float32). The last two have neither
            dropout nor second derivatives, and torch.func does not take them. None chooses the fastest that can serve.
        beyond: (2, heads, d), the key and the value of pixels beyond the map. None means zeros.

    Returns:
        (B, H, W, heads, d), of the dtype of ``value``. The softmax and sums are computed in float32 at least.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(dropout_p, query=query, key=key, value=value, bias=bias, beyond=beyond)
    check_attention(query, key, value, bias, beyond, kernel_size, dilation)
    if backend is None:
        backend = _fastest(query, key, value, bias=bias, beyond=beyond, dropout_p=dropout_p)
    function = named_backend(BACKENDS, backend)
    return function(query, key, value, bias, beyond, kernel_size, within(dilation, query), dropout_p)


def neighbourhood_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    beyond: Tensor | None,
    kernel_size: int,
    dilation: int,
    dropout_p: float,
) -> Tensor:
    """The equation as it is written, over k * k gathered copies of keys and values."""
    (rows, of_rows), (columns, of_columns) = (
        _neighbours(query.shape[dim], kernel_size, dilation, query.device) for dim in (1, 2)
    )
    exact, dtype = torch.promote_types(query.dtype, torch.float32), value.dtype
    key, value = (
        _gathered(x.to(exact), pixel, rows, columns) for x, pixel in zip((key, value), beyond_of(beyond))
    )  # (B, H, W, k * k, heads, d)
    query = query.to(exact) / query.shape[-1] ** 0.5
    with without_autocast(query):
        logits = torch.einsum('bhwnd,bhwjnd->bhwnj', query, key)
        if bias is not None:
            table = bias.to(exact).index_select(1, of_rows.flatten()).index_select(2, of_columns.flatten())
            table = table.unflatten(2, (-1, kernel_size)).unflatten(1, (-1, kernel_size))  # (heads, H, k, W, k)
            logits = logits + table.permute(1, 3, 0, 2, 4).flatten(-2)
        weights = F.dropout(logits.softmax(-1), dropout_p)
        return torch.einsum('bhwnj,bhwjnd->bhwnd', weights, value).to(dtype)


def _neighbours(size: int, k: int, dilation: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The neighbours (size, k) of each pixel of an axis, and their numbers among 2k - 1 relative positions.

    Neighbours of ``size`` and more are beyond the axis. No decision depends on its size: one graph serves all.
    """
    pixel = torch.arange(size, device=device)
    line, place = pixel % dilation, pixel // dilation
    length = ((size - 1 - line) // dilation + 1).clamp(min=k)  # of each pixel's line, continued
    start = torch.minimum((place - k // 2).clamp(min=0), length - k)
    found = start[:, None] + torch.arange(k, device=device)
    return found * dilation + line[:, None], found - place[:, None] + k - 1


def _gathered(x: Tensor, beyond: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor:
    """A map (B, H, W, heads, d) at rows (H, k) and columns (W, k) -> (B, H, W, k * k, heads, d)."""
    H, W = x.shape[1:3]
    k = rows.shape[1]
    pixel = x.new_zeros(x.shape[3:]) if beyond is None else beyond.to(x)
    # One row and one column beyond the map stand for all.
    x = torch.cat((x, pixel.expand(x.shape[0], 1, W, -1, -1)), 1)
    x = torch.cat((x, pixel.expand(x.shape[0], H + 1, 1, -1, -1)), 2)
    x = x.index_select(1, rows.clamp(max=H).flatten()).unflatten(1, (-1, k))
    x = x.index_select(3, columns.clamp(max=W).flatten()).unflatten(3, (-1, k))
    return x.transpose(2, 3).flatten(3, 4)


def neighbourhood_attention_cpp(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    beyond: Tensor | None,
    kernel_size: int,
    dilation: int,
    dropout_p: float,
) -> Tensor:
    """The same in C++, in float32, with the weights of one row of pixels in memory."""
    if dropout_p:
        raise ValueError(f"backend 'cpp' needs dropout_p=0, not {dropout_p}: choose backend 'reference'")
    library.check_takes(query, key, value, dtypes=HALF_OR_SINGLE)
    tensors = [None if x is None else x.float() for x in (query, key, value, bias, beyond)]
    return neighbourhood_attention_cpu(*tensors, kernel_size, dilation).to(value.dtype)


def _triton(query: Tensor, *arguments) -> Tensor:
    """:func:`mmattn.ops.neighbourhood_triton.neighbourhood_attention_triton`, imported when it is needed."""
    check_triton(query)
    from .neighbourhood_triton import neighbourhood_attention_triton

    with on_device(query):
        return neighbourhood_attention_triton(query, *arguments)


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': neighbourhood_attention_reference,
    'cpp': neighbourhood_attention_cpp,
    'triton': _triton,
}


def _fastest(*maps: Tensor, bias: Tensor | None, beyond: Tensor | None, dropout_p: float) -> str:
    """The backend that None stands for.

    The C++ code serves the CPU, and Triton's kernels serve GPUs, if there is no dropout; neither is for graphs to be
    exported or for torch.func, and each serves after :func:`~.backend.choose_backend` has checked it.
    """
    names = *(() if dropout_p else _compiled(*maps)), 'reference'
    # The heads of 32 channels and 7 x 7 neighbours of all released models, on a map that is continued on one side.
    shape = (1, 17, 13, 2, 32)
    case = shape, shape, shape, None if bias is None else (2, 13, 13), None if beyond is None else (2, 2, 32)
    return choose_backend('neighbourhood_attention', names, maps[0].device, maps[0].dtype, _case, case)


def _compiled(*maps: Tensor) -> tuple[str, ...]:
    """The compiled backends that can serve."""
    if library.takes(*maps, dtypes=HALF_OR_SINGLE):
        return ('cpp',)
    served = HAS_TRITON and maps[0].is_cuda and maps[0].dtype in HALF_OR_SINGLE
    return ('triton',) if served and not is_exporting() and not is_transforming() else ()


def _case(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, beyond: Tensor | None, backend: str
) -> Tensor:
    return neighbourhood_attention(query, key, value, bias, 7, 2, backend=backend, beyond=beyond)
