from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from .derivatives import apply


def cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tensors of one dtype in another one, by two launches together, and as many for their gradients. Autograd has one
    node for all of them. Not for ``torch.func``."""
    return apply(_Cast, dtype, *tensors)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        return _cast(tensors, dtype)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_cast(grads, ctx.dtype)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(_unflatten_dense_tensors(_flatten_dense_tensors(tensors).to(dtype), tensors))
