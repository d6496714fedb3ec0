"""Batch norm, the sum with a shortcut and ReLU, as in residual blocks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backend import autocast_dtype, check_maps, check_triton, has_hooks, named_backend, triton_takes
from ..tracing import is_tracing

if TYPE_CHECKING:
    from .triton import NormReLU


def batch_norm_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None = None,
    eps: float = 1e-5,
    backend: str | None = None,
) -> Tensor:
    """``relu(norm(x) + shortcut)``, with the statistics of the batch.

    Args:
        x: (B, H, W, C).
        weight: (C).
        bias: (C).
        shortcut: like x, or None.
        eps: added to the variance.
        backend: 'reference' or 'triton' (GPUs, sums in float32). None chooses the fastest one that can serve.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(x=x, weight=weight, bias=bias, shortcut=shortcut)
    if x.dim() != 4 or not weight.shape == bias.shape == x.shape[-1:]:
        given = ', '.join(str(tuple(each.shape)) for each in (x, weight, bias))
        raise ValueError(f'x must be (B, H, W, C), weight and bias (C), not {given}')
    if shortcut is not None and (shortcut.shape, shortcut.dtype) != (x.shape, x.dtype):
        raise ValueError(f'shortcut must be like x, not {tuple(shortcut.shape)} of {shortcut.dtype}')
    if backend is None:
        backend = 'triton' if triton_takes(x) and not is_tracing() else 'reference'
    return named_backend(BACKENDS, backend)(x, weight, bias, shortcut, eps)


def _reference(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, eps: float) -> Tensor:
    # Rounded before ReLU, numbers near zero would change their sign, and so their gradients.
    exact = torch.promote_types(x.dtype, torch.float32)
    pixels, weight, bias = (each.to(exact) for each in (x.permute(0, 3, 1, 2), weight, bias))
    out = F.batch_norm(pixels, None, None, weight, bias, True, 0.0, eps).permute(0, 2, 3, 1)
    return F.relu(out if shortcut is None else out + shortcut).to(x.dtype)


def _triton(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, eps: float) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    check_triton(x)
    from .triton import NormReLU

    return NormReLU(x, shortcut, weight, bias, eps)(x)


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': _reference, 'triton': _triton}


def norm_then_relu(
    norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, drop_path: nn.Module | None = None
) -> Callable[[Tensor], Tensor]:
    """A function that gives ``relu(drop_path(norm(x)) + shortcut)`` of the map x (B, C, H, W), and may be called again.
    Under autocast, a float32 map may become one in half precision, as the convolution that follows would make it.

    On a GPU, kernels serve a plain ``nn.BatchNorm2d`` with running statistics, which follow x once. Hooks, branches
    that are dropped, other norms and graphs, where torch.compile fuses them, stay with torch.
    """
    if not kernels_serve(norm, x, shortcut, drop_path):

        def by_torch(x: Tensor) -> Tensor:
            x = norm(x)
            if shortcut is not None:
                x = drop_path(x)
                x += shortcut
            return F.relu(x, inplace=True)

        return by_torch

    function = _function(norm, x, shortcut)

    def by_kernels(x: Tensor) -> Tensor:
        return function(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return by_kernels


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """``norm(x)`` of the map x (B, C, H, W), by kernels where :func:`norm_then_relu` has them."""
    if not kernels_serve(norm, x):
        return norm(x)
    return _function(norm, x, None, relu=False)(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convolution_of_relu(norm: nn.Module, conv: object, x: Tensor) -> Tensor | None:
    """``conv(relu(norm(x)))`` of the map x (B, C, H, W), whose backward pass keeps x alone, by kernels on a GPU. They
    serve what :func:`norm_then_relu` says, and plain convolutions without hooks; else, the result is None."""
    is_plain = type(conv) is nn.Conv2d and conv.padding_mode == 'zeros' and not isinstance(conv.padding, str)
    if not is_plain or has_hooks(conv) or not kernels_serve(norm, x):
        return None
    return _function(norm, x, None).then(conv, x.permute(0, 2, 3, 1))


def _function(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, relu: bool = True) -> 'NormReLU':
    """The kernels for maps (B, C, H, W)."""
    from .triton import NormReLU

    tokens = lambda x: None if x is None else x.permute(0, 2, 3, 1)
    running = None if norm.training else (norm.running_mean, norm.running_var)
    dtype = autocast_dtype(x) if shortcut is None else x.dtype
    return NormReLU(tokens(x), tokens(shortcut), norm.weight, norm.bias, norm.eps, running, norm, dtype, relu)


def kernels_serve(
    norm: nn.Module, x: Tensor, shortcut: Tensor | None = None, drop_path: nn.Module | None = None
) -> bool:
    """Whether the kernels serve a norm of the map x (B, C, H, W), as :func:`norm_then_relu` says."""
    if is_tracing() or type(norm) is not nn.BatchNorm2d or not triton_takes(x):
        return False
    if drop_path is not None and drop_path.training and drop_path.drop_prob:
        return False
    if has_hooks(norm) or has_hooks(drop_path):
        return False
    if norm.weight is None or norm.running_mean is None or norm.num_batches_tracked is None or norm.momentum is None:
        return False
    alike = shortcut is None or (shortcut.shape, shortcut.dtype, shortcut.device) == (x.shape, x.dtype, x.device)
    return alike and x.shape[1] == norm.num_features and norm.weight.device == x.device and x.numel() > x.shape[1]
