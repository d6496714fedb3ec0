"""Neighbourhood attention: "Neighborhood Attention Transformer", and with dilation "Dilated Neighborhood Attention
Transformer".

Layers call ``neighbourhood_attention``. Every backend takes the arguments of ``neighbourhood_attention_reference``,
which tests compare with.

FlexAttention of torch is not among them: on the CPU it has no backward pass, and on a GPU its mask of blocks is for one
size of map.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import library
from ..backend import (
    HALF,
    HALF_OR_SINGLE,
    check_maps,
    check_triton,
    named_backend,
    on_device,
    triton_multiplies,
    triton_takes,
)
from ..elsa.reference import within
from ..tracing import is_tracing
from .cpp import neighbourhood_attention_cpp
from .reference import check_attention, check_neighbours, check_parameters, neighbourhood_attention_reference

__all__ = ['check_neighbours', 'may_be_continued', 'neighbourhood_attention']


def neighbourhood_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
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
        query, key, value: (B, H, W, heads, d). Or query is all three, (B, H, W, 3, heads, d), as one projection makes
            them, and key and value are None. Then 'triton' has no need to copy their gradients together.
        bias: (heads, 2k - 1, 2k - 1) by relative position, in steps of the dilation: row and column of the neighbour
            minus those of the pixel, plus k - 1. None means zeros.
        kernel_size: k, odd.
        dilation: distance of neighbours, in pixels.
        dropout_p: probability of dropping an attention weight.
        backend: 'reference', 'cpp' (the CPU, in float32) or 'triton' (GPUs, in float32; maps of 16 bits are multiplied
            on tensor cores, if k is at most 15 and d at most 64; then NaN reaches some more pixels). The last two have
            neither dropout nor second derivatives, and torch.func does not take them. None chooses the fastest that
            can serve.
        beyond: (2, heads, d), the key and the value of pixels beyond the map. None means zeros.

    Returns:
        (B, H, W, heads, d), of the dtype of ``value``. The softmax and sums are computed in float32 at least.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    given = query, key, value
    if key is None or value is None:
        if key is not value or query.dim() != 6 or query.shape[3] != 3:
            raise ValueError(f'query without key and value must be (B, H, W, 3, heads, d), not {tuple(query.shape)}')
        if backend in (None, 'triton') and not dropout_p and triton_takes(query):  # Views are left to its kernels.
            check_maps(query=query, bias=bias, beyond=beyond)
            check_parameters(*query.shape[4:], bias, beyond, kernel_size, dilation)
            return _triton(query, None, None, bias, beyond, kernel_size, within(dilation, query), dropout_p)
        query, key, value = query.unbind(3)
    check_maps(dropout_p, query=query, key=key, value=value, bias=bias, beyond=beyond)
    check_attention(query, key, value, bias, beyond, kernel_size, dilation)
    if backend is None:
        backend = fastest(query, key, value, dropout_p)
    function = named_backend(BACKENDS, backend)
    if backend == 'triton':
        query, key, value = given
    return function(query, key, value, bias, beyond, kernel_size, within(dilation, query), dropout_p)


def may_be_continued(query: Tensor, kernel_size: int, dilation: int) -> bool:
    """Whether pixels ``beyond`` a map (B, H, W, ...) may be read. A graph may be for maps of other sizes."""
    return is_tracing() or min(query.shape[1:3]) < kernel_size * dilation


def fastest(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> str:
    """The backend that None stands for, of :func:`neighbourhood_attention`."""
    if dropout_p:
        return 'reference'
    if library.takes(query, key, value, dtypes=HALF_OR_SINGLE):
        return 'cpp'
    return 'triton' if triton_takes(query) else 'reference'


def _triton(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    beyond: Tensor | None,
    kernel_size: int,
    dilation: int,
    dropout_p: float,
) -> Tensor:
    """Triton's files are imported when they are needed: Triton is not everywhere."""
    check_triton(query)
    if dropout_p:
        raise ValueError(f"backend 'triton' needs dropout_p=0, not {dropout_p}: choose backend 'reference'")
    multiplies = triton_multiplies(query) or query.dtype in HALF and not query.is_cuda  # It is interpreted.
    is_one_type = key is None or query.dtype == key.dtype == value.dtype
    if multiplies and is_one_type and kernel_size <= 15 and query.shape[-1] <= 64:
        from .tensor_cores import neighbourhood_attention_products

        maps = query if key is None else torch.stack((query, key, value), 3)
        return neighbourhood_attention_products(maps, bias, beyond, kernel_size, dilation)
    from .triton import neighbourhood_attention_triton

    maps = query.unbind(3) if key is None else (query, key, value)
    with on_device(query):
        return neighbourhood_attention_triton(*maps, bias, beyond, kernel_size, dilation)


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': neighbourhood_attention_reference,
    'cpp': neighbourhood_attention_cpp,
    'triton': _triton,
}
