import math

import torch
from torch import Tensor


def sparse_product(weights: Tensor, x: Tensor) -> Tensor:
    """``weights @ x`` of weights that are mostly zero and have no gradient, which do not spread NaN or infinity of x.

    In a plain product, zero times either is NaN. Here, they reach what has a weight for them, as NaN.

    Args:
        weights: (M, N).
        x: (N, c).

    Returns:
        (M, c).
    """
    return _SparseProduct.apply(weights, x)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        finite = x.isfinite()
        out = weights @ x.masked_fill(~finite, 0)
        return out.masked_fill((weights != 0).to(x.dtype) @ (~finite).to(x.dtype) > 0, math.nan)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, Tensor]:
        (weights,) = ctx.saved_tensors
        return None, sparse_product(weights.mT, grad)
