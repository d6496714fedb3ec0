"""GELU of a map plus a bias, as after the first layer of a transformer's MLP."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backend import check_maps, check_triton, has_hooks, named_backend, on_device, triton_takes
from ..tracing import is_tracing


def biased_gelu(x: Tensor, bias: Tensor, backend: str | None = None) -> Tensor:
    """``gelu(x + bias)``.

    Args:
        x: (B, ..., C).
        bias: (C).
        backend: 'reference' or 'triton' (GPUs, sums in float32). None chooses the fastest one that can serve.

    Returns:
        Like x.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(x=x, bias=bias)
    if bias.shape != x.shape[-1:]:
        raise ValueError(f'bias must be (C), C the channels of x, {x.shape[-1]}, not {tuple(bias.shape)}')
    if backend is None:
        backend = 'triton' if triton_takes(x) and not is_tracing() else 'reference'
    return named_backend(BACKENDS, backend)(x, bias)


def _reference(x: Tensor, bias: Tensor) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    return F.gelu(x.to(exact) + bias.to(exact)).to(x.dtype)


def _triton(x: Tensor, bias: Tensor) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    check_triton(x)
    from .triton import BiasedGELU

    with on_device(x):
        return BiasedGELU.apply(x.contiguous(), bias)


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': _reference, 'triton': _triton}


def linear_gelu(layer: nn.Module, x: Tensor) -> Tensor:
    """``gelu(layer(x))``.

    On a GPU, the kernels add the bias of a plain linear layer without hooks, in float32: autocast does not cast it, and
    its gradient is summed in the pass over that of the map. In graphs, torch.compile fuses operators.
    """
    plain = type(layer) is nn.Linear and layer.bias is not None and not has_hooks(layer)
    if not plain or is_tracing() or not triton_takes(x):
        return F.gelu(layer(x))
    return biased_gelu(F.linear(x, layer.weight), layer.bias)
