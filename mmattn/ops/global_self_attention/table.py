"""Tables of relative positions, fitted to lines of another length."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import without_autocast
from ..tracing import is_tracing, is_transforming


def fit_table(table: Tensor, length: int, beyond: str) -> Tensor:
    """A table (2L - 1, k) fitted to lines of length l, (2l - 1, k), as :func:`axial_attention` says."""
    L = len(table) // 2 + 1
    if not is_tracing() and (length <= L or beyond == 'mask'):
        return F.pad(table, (0, 0, length - L, length - L))  # negative: cropped
    # One formula for shorter and longer lines, so that one graph serves all sizes: a product with the weights of linear
    # interpolation. F.interpolate raises an error on a GPU in deterministic mode. Rows that are gathered by a
    # computed index take torch.compile minutes, because it simplifies the index for each table.
    exact = torch.promote_types(table.dtype, torch.float32)
    offset = torch.arange(2 * length - 1, device=table.device, dtype=exact) - (length - 1)
    row = offset + (L - 1)
    if beyond == 'stretch':
        reach = offset[-1].clamp(min=max(L, 2) - 1)  # the offset of the last row of the table
        row = (offset + reach) * (L - 1) / reach
    distance = (row[:, None] - torch.arange(2 * L - 1, device=table.device, dtype=exact)).abs()
    with without_autocast(table):
        weights = (1 - distance).clamp(min=0).to(table.dtype)
        fitted = weights @ table if is_tracing() or is_transforming() else sparse_product(weights, table)
    return fitted * (L / (offset[-1] + 1).clamp(min=L)).to(table.dtype) if beyond == 'stretch' else fitted


def reach_of(table: Tensor, length: int, beyond: str) -> int | None:
    """The largest distance of pixels that attend to each other; None if there is none. In a graph, lines may be of any
    length."""
    reach = len(table) // 2
    return reach if beyond == 'mask' and (is_tracing() or length > reach + 1) else None


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
