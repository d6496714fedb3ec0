"""The ELSA operator: equations 5, 7 and 8 of "ELSA: Enhanced Local Self-Attention for Vision Transformer".

Layers call ``elsa_attention``. Every backend takes the arguments of ``elsa_attention_reference``, which tests compare
with. Layers with other filters than a softmax call its parts, the functions ``neighbourhood_...``.
"""

from collections.abc import Callable

from torch import Tensor

from .. import library
from ..backend import HALF_OR_SINGLE, check_maps, check_triton, named_backend, triton_takes
from ..tracing import is_exporting
from .band import elsa_attention_band
from .cpp import elsa_attention_cpp, summed_cpp
from .reference import check_neighbourhoods, elsa_attention_reference, side, within
from .shifted import elsa_attention_shifted, neighbourhood_products, neighbourhood_shift, summed

__all__ = ['elsa_attention', 'neighbourhood_products', 'neighbourhood_shift', 'neighbourhood_sum']


def elsa_attention(
    logits: Tensor,
    value: Tensor,
    ghost_mul: Tensor | None = None,
    ghost_add: Tensor | None = None,
    dilation: int = 1,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""Aggregate the k x k neighbourhood of every pixel with attention weights of its own.

    .. math::
        f_i = \sum_{j \in \Theta} \hat h^c_{j-i} v_j, \qquad
        \hat h^c = \mathrm{mul}^c \, \mathrm{softmax}_j(\mathrm{logits}^{head(c)}) + \mathrm{add}^c

    Neighbours are in row-major order. Outside the map the value is zero, and the softmax is not masked there. Channel c
    belongs to head ``c // (C / heads)``, as in the released weights (the paper writes c mod heads).

    Args:
        logits: (B, H, W, heads, k * k) Hadamard attention before the softmax, k odd.
        value: (B, H, W, C), C divisible by heads.
        ghost_mul: (C, k, k), the matrix :math:`O^\lambda` of equation 8; None means ones.
        ghost_add: (C, k, k), the matrix :math:`\gamma S` of equation 8; None means zeros.
        dilation: distance of neighbours, in pixels.
        dropout_p: probability of dropping an attention weight.
        backend: 'reference', 'shifted' (any device), 'band' (for ONNX), 'cpp' (the CPU, at most 32 bits) or 'triton'
            (GPUs, no dropout). The last two have no second derivatives and are not for torch.func. None chooses the
            fastest that can serve: :func:`fastest`.

    Returns:
        (B, H, W, C), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(dropout_p, logits=logits, value=value, ghost_mul=ghost_mul, ghost_add=ghost_add)
    check_neighbourhoods('logits', logits, value, dilation)
    shape = (value.shape[-1], *[side(logits.shape[-1])] * 2)
    for name, ghost in (('ghost_mul', ghost_mul), ('ghost_add', ghost_add)):
        if ghost is not None and ghost.shape != shape:
            raise ValueError(f'{name} must be {shape}, not {tuple(ghost.shape)}')
    backend = fastest(logits, value, dropout_p) if backend is None else backend
    function = named_backend(BACKENDS, backend)
    return function(logits, value, ghost_mul, ghost_add, within(dilation, value), dropout_p)


def neighbourhood_sum(weights: Tensor, value: Tensor, mul: Tensor | None = None, dilation: int = 1) -> Tensor:
    r"""The sum of ``elsa_attention`` with any weights: :math:`f_i = \sum_j \mathrm{mul}^c_{j-i} w_{i, j-i} v_j`.

    Args:
        weights: (B, H, W, heads, k * k), k odd.
        value: (B, H, W, C), C divisible by heads.
        mul: (C, k * k), or (B, C, k * k) for each image; None means ones.
        dilation: distance of neighbours, in pixels.

    Returns:
        (B, H, W, C), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other.
    """
    check_maps(weights=weights, value=value, mul=mul)
    check_neighbourhoods('weights', weights, value, dilation)
    shape = (*value.shape[:1], value.shape[-1], weights.shape[-1])
    if mul is not None and mul.shape not in (shape, shape[1:]):
        raise ValueError(f'mul must be {shape[1:]} or {shape}, not {tuple(mul.shape)}')
    function = summed_cpp if library.takes(weights, value, dtypes=HALF_OR_SINGLE) else summed
    return function(weights, value, mul, None, within(dilation, value))


def fastest(logits: Tensor, value: Tensor, dropout_p: float = 0.0) -> str:
    """The backend that None stands for, of :func:`elsa_attention`.

    Args:
        logits: or a tensor of their device and dtype.
    """
    if library.takes(logits, value, dtypes=HALF_OR_SINGLE):
        return 'cpp'
    if triton_takes(value) and not dropout_p:
        return 'triton'
    return 'band' if is_exporting() else 'shifted'


def _triton(logits: Tensor, value: Tensor, *arguments) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    check_triton(value)
    from .triton import elsa_attention_triton

    return elsa_attention_triton(logits, value, *arguments)


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': elsa_attention_reference,
    'shifted': elsa_attention_shifted,
    'band': elsa_attention_band,
    'cpp': elsa_attention_cpp,
    'triton': _triton,
}
