"""GELU between the two linear layers of a transformer's MLP, and with a gate."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import library
from ..backend import check_maps, check_triton, has_hooks, named_backend, triton_takes
from ..derivatives import apply, by_torch
from ..library import call, empty_like, operator
from ..tracing import is_tracing


def gelu_linear(x: Tensor, bias: Tensor, weight: Tensor, offset: Tensor, backend: str | None = None) -> Tensor:
    """``linear(gelu(x + bias), weight, offset)``.

    Args:
        x: (B, ..., C).
        bias: (C).
        weight: (D, C).
        offset: (D).
        backend: 'reference' or 'triton' (GPUs, sums in float32; the backward pass computes the GELU again). None
            chooses the fastest one that can serve.

    Returns:
        (B, ..., D), of the dtype of x.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(x=x, bias=bias, weight=weight, offset=offset)
    if bias.shape != x.shape[-1:] or weight.dim() != 2 or weight.shape != (*offset.shape, *bias.shape):
        given = ', '.join(str(tuple(each.shape)) for each in (x, bias, weight, offset))
        raise ValueError(f'x must be (B, ..., C), bias (C), weight (D, C) and offset (D), not {given}')
    if backend is None:
        backend = 'triton' if triton_takes(x) and not is_tracing() else 'reference'
    return named_backend(BACKENDS, backend)(x, bias, weight, offset)


def _reference(x: Tensor, bias: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    taken = F.gelu(x.to(exact) + bias.to(exact)).to(x.dtype)
    return F.linear(taken, weight.to(x.dtype), offset.to(x.dtype))


def _triton(x: Tensor, bias: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    check_triton(x)
    return gelu_linear_triton(x, bias, weight, offset)


def gelu_linear_triton(x: Tensor, bias: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """:func:`gelu_linear` without its checks, for layers that :func:`kernels_serve`."""
    return apply(_function(), x.contiguous(), bias, weight, offset)


@cache
def _function() -> type[torch.autograd.Function]:
    """Imported when it is needed: Triton is not everywhere."""
    from .triton import GELULinear

    return GELULinear


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': _reference, 'triton': _triton}


def kernels_serve(x: Tensor, *layers: nn.Module) -> bool:
    """Whether kernels on a GPU do what is between two layers: plain linear ones with biases and without hooks, and not
    in graphs, where torch.compile fuses operators."""
    if is_tracing() or not triton_takes(x):
        return False
    return all(type(layer) is nn.Linear and layer.bias is not None and not has_hooks(layer) for layer in layers)


def gelu_gated(x: Tensor, gate: Tensor) -> Tensor:
    """``gelu(x) * gate``, of two tensors of one shape. In C++ in float32 on the CPU, in one pass, also backward."""
    return (_gelu_gated if library.takes(x, gate) else _gated)(x, gate)


def _gated(x: Tensor, gate: Tensor) -> Tensor:
    return F.gelu(x) * gate


def _check(*given: Tensor) -> None:
    if any(x.shape != given[0].shape for x in given):
        shapes = ', '.join(str(tuple(x.shape)) for x in given)
        raise ValueError(f'x, gate and the gradient must have one shape, not {shapes}')


def _forward(x: Tensor, gate: Tensor) -> Tensor:
    out = empty_like(x)
    call('gelu_gated', x.contiguous(), gate.contiguous(), out, [x.numel()])
    return out


def _backward(*given: Tensor) -> list[Tensor]:
    gradients = [empty_like(x) for x in given[1:]]
    call('gelu_gated_backward', *(x.contiguous() for x in given), *gradients, [given[0].numel()])
    return gradients


_gelu_gated_backward = operator(
    'gelu_gated_backward(Tensor grad, Tensor x, Tensor gate) -> Tensor[]',
    _check,
    _backward,
    lambda grad, *given: [empty_like(x) for x in given],
    by_torch(_gated),
)
_gelu_gated = operator(
    'gelu_gated(Tensor x, Tensor gate) -> Tensor',
    _check,
    _forward,
    lambda x, gate: empty_like(x),
    lambda *given: tuple(_gelu_gated_backward(*given)),
)
