"""The sum with a branch, and the layer norm of it, as in transformer blocks."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backend import check_maps, check_triton, has_hooks, named_backend, triton_takes
from ..derivatives import apply
from ..tracing import is_tracing

#: channels that the kernels take at most: a program reads all of a pixel
WIDEST = 2048


def sum_and_norm(
    x: Tensor,
    branch: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    kept: Tensor | None = None,
    eps: float = 1e-5,
    rate: float = 0.0,
    dtype: torch.dtype | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``total = x + branch * kept / (1 - rate)``, and the layer norm of it.

    Args:
        x: (B, ..., C).
        branch: like x, perhaps of another dtype; None: 0.
        weight, bias: of the norm, (C); None: there is no norm.
        kept: (B), 1 for images that keep the branch, 0 for others, in float32; None: all do, and ``rate`` is not used.
        eps: added to the variance.
        rate: probability of losing the branch.
        dtype: of the norm's result; None: that of the sum.
        backend: 'reference' or 'triton' (GPUs, sums in float32, C of at most 2048). None chooses the fastest one that
            can serve.

    Returns:
        The sum, (B, ..., C), and its norm, or None if there is none.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(x=x, branch=branch, weight=weight, bias=bias, kept=kept)
    if branch is not None and branch.shape != x.shape:
        raise ValueError(f'branch must be like x, {tuple(x.shape)}, not {tuple(branch.shape)}')
    if (weight is None) != (bias is None) or weight is not None and not weight.shape == bias.shape == x.shape[-1:]:
        raise ValueError(f'weight and bias must be both (C) or None, C the channels of x, {x.shape[-1]}')
    if kept is not None and (kept.shape, kept.dtype) != (x.shape[:1], torch.float32):
        raise ValueError(f'kept must be (B) in float32, not {tuple(kept.shape)} in {kept.dtype}')
    if backend is None:
        backend = 'triton' if triton_takes(x) and x.shape[-1] <= WIDEST and not is_tracing() else 'reference'
    return named_backend(BACKENDS, backend)(x, branch, weight, bias, kept, eps, rate, dtype)


def _reference(
    x: Tensor, branch: Tensor | None, weight: Tensor | None, bias: Tensor | None, kept: Tensor | None, eps: float,
    rate: float, dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    exact = torch.promote_types(x.dtype, torch.float32)
    total = x
    if branch is not None:
        branch_dtype, branch = branch.dtype, branch.to(exact)
        if kept is not None:
            branch = branch * (kept / (1 - rate)).view(-1, *[1] * (x.dim() - 1))
        total = (x.to(exact) + branch).to(torch.promote_types(x.dtype, branch_dtype))
    if weight is None:
        return total, None
    normed = F.layer_norm(total.to(exact), weight.shape, weight.to(exact), bias.to(exact), eps)
    return total, normed.to(dtype or total.dtype)


def _triton(
    x: Tensor, branch: Tensor | None, weight: Tensor | None, bias: Tensor | None, kept: Tensor | None, eps: float,
    rate: float, dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    check_triton(x)
    if x.shape[-1] > WIDEST:
        raise ValueError(f"backend 'triton' takes at most {WIDEST} channels, not {x.shape[-1]}: choose 'reference'")
    return sum_and_norm_triton(x.contiguous(), branch, weight, bias, kept, eps, rate, dtype)


def sum_and_norm_triton(
    x: Tensor, branch: Tensor | None, weight: Tensor | None, bias: Tensor | None, kept: Tensor | None = None,
    eps: float = 1e-5, rate: float = 0.0, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """:func:`sum_and_norm` of a contiguous x without most of its checks, which cost the host time: for modules that
    :func:`kernels_serve`."""
    if branch is not None and branch.shape != x.shape:
        raise ValueError(f'branch must be like x, {tuple(x.shape)}, not {tuple(branch.shape)}')
    return apply(_function(), x, branch, weight, bias, kept, eps, rate, dtype)


@cache
def _function() -> type[torch.autograd.Function]:
    """Imported when it is needed: Triton is not everywhere."""
    from .triton import SumAndNorm

    return SumAndNorm


BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {'reference': _reference, 'triton': _triton}


def kernels_serve(x: Tensor, *modules: nn.Module) -> bool:
    """Whether the sums and layer norms of a block are left to kernels on a GPU: of plain modules without hooks, and not
    in graphs, where torch.compile fuses them."""
    if is_tracing() or not triton_takes(x) or not 0 < x.shape[-1] <= WIDEST or not x.is_contiguous():
        return False
    for module in modules:
        if has_hooks(module) or isinstance(module, nn.LayerNorm) and not is_plain_norm(module, x):
            return False
    return True


def is_plain_norm(norm: nn.LayerNorm, x: Tensor) -> bool:
    """Whether it is torch's layer norm of the channels of x, with a weight and a bias."""
    weight = norm.weight
    has_both = weight is not None and norm.bias is not None
    return type(norm) is nn.LayerNorm and has_both and weight.shape == x.shape[-1:]
