"""The bias by position of TransNeXt: a table that an MLP makes of distances (section 3.1)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import library
from ..any_size import distances
from ..backend import HALF_OR_SINGLE, autocast_dtype, has_hooks
from ..derivatives import by_torch
from ..library import call, empty_like, operator
from ..recompute import recompute
from ..resize import interpolated
from ..tracing import is_plain, is_tracing, kept

#: numbers of a matrix that is kept for the next call: in images of many sizes, larger ones would fill a GPU's memory
MAX_KEPT = 2**19

#: pixels and pools of rows and of columns
Axes = tuple[tuple[int, int], tuple[int, int]]

#: numbers of hidden maps in memory at a time, for inference
MAX_HIDDEN, MAX_HIDDEN_GPU = 2**20, 2**26


class PooledBias(NamedTuple):
    """The bias of h x w pooled tokens for the pixels of a map of H x W.

    That of a pixel (y, x) and a token (i, j) is ``table[:, rows[y, i], columns[x, j]]``; without ``rows``, it is
    ``table[:, y, i, columns[x, j]]``. With a ``size``, it is interpolated from all columns. With ``shares``,
    ``of_rows`` computes the same as a product with a matrix.
    """

    table: Tensor  #: (heads, R, D); without rows (heads, H, h, D)
    columns: Tensor  #: places in D, (W, w), or those of a map of another size
    rows: Tensor | None = None  #: places in R, (H, h)
    size: tuple[int, int] | None = None  #: W and w
    shares: Tensor | None = None  #: (D, W, w)

    def of_rows(self, rows: slice) -> Tensor:
        """The bias for the pixels of some rows, (heads, rows, h, W, w)."""
        part = self.table[:, rows if self.rows is None else self.rows[rows]]
        if self.shares is not None:
            return (part.flatten(1, 2) @ self.shares.flatten(1)).view(*part.shape[:3], *self.shares.shape[1:])
        part = part[..., self.columns]
        if self.size is None:
            return part
        return interpolated(part.flatten(0, 2)[None], *self.size, 'bilinear')[0].unflatten(0, part.shape[:3])


def logarithmic_distances(size: int, count: int, known: bool, side: int, like: Tensor) -> Tensor:
    """All distances of :func:`mmattn.ops.any_size.distances`, on the scale of the MLP, on which that of ``side`` pixels
    is about 1.

    like: a tensor of the dtype and on the device of the result.
    """
    return kept(_logarithmic, like, size, count, known, side, like.dtype)


def _logarithmic(size: int, count: int, known: bool, side: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    distance, _ = distances(size, count, known, device)
    distance = distance.to(torch.promote_types(dtype, torch.float32)) * (8 / (side - 1))
    return (distance.sign() * torch.log2(distance.abs() + 1) / 3).to(dtype)


def table_of_pairs(first: nn.Module, second: nn.Module, rows: Tensor, columns: Tensor, hidden: int) -> Tensor:
    """An MLP of all pairs of rows (R) and columns (S) -> (heads, R, S).

    In C++ on the CPU, its hidden map, of ``hidden`` channels, is never in memory. Else, the backward pass computes it
    again, and inference has a part of it in memory.

    Args:
        first: a linear layer from pairs to the hidden channels, before ReLU.
        second: one from the hidden channels to the heads.
    """
    layers = first, second
    plain = all(type(x) is nn.Linear and x.bias is not None and not has_hooks(x) for x in layers)
    if plain and library.takes(rows, *(x.weight.detach() for x in layers), dtypes=HALF_OR_SINGLE):
        tensors = (x for layer in layers for x in (layer.weight, layer.bias))
        weight, bias, out_weight, out_bias = (x.to(autocast_dtype(x)).float() for x in tensors)
        of_rows = bias + rows[:, None].float() * weight[:, 0]
        table = _relu_of_pairs(of_rows, columns[:, None].float() * weight[:, 1], out_weight)
        return (table + out_bias[:, None, None]).to(rows.dtype)

    def mlp(rows: Tensor, columns: Tensor) -> Tensor:
        """(R) and (S) -> (R, S, heads)."""
        positions = torch.stack((rows[:, None].expand(-1, columns.shape[0]), columns.expand(rows.shape[0], -1)), -1)
        return second(F.relu(first(positions)))

    if torch.is_grad_enabled() or not is_plain(rows):
        table = recompute(mlp, rows, columns, modules=layers, random=False, compiled=False)
    else:
        most = MAX_HIDDEN_GPU if rows.is_cuda else MAX_HIDDEN
        parts = rows.split(max(1, most // (len(columns) * hidden)))
        table = torch.cat([mlp(part, columns) for part in parts]) if len(parts) > 1 else mlp(rows, columns)
    return table.permute(2, 0, 1)


def bias_by_position(table: Tensor, of: Axes, to: Axes, interpolate: bool) -> PooledBias:
    """The bias of pixels and pools, from a table by their distance, (heads, R, S).

    Args:
        of: pixels and pools of the two axes, whose distances the table has.
        to: those of the map.
        interpolate: whether they may be others, to which the bias is interpolated.
    """
    # On a GPU, the gradients of indexing and interpolation have many kernels, and the latter adds in any order.
    by = _by_products if table.is_cuda and not is_tracing() else _by_places
    return by(table, of, to, interpolate)


def _by_places(table: Tensor, of: Axes, to: Axes, interpolate: bool) -> PooledBias:
    of_rows, of_columns = (kept(distances, table, *axis, interpolate)[1] for axis in of)
    if not interpolate:
        return PooledBias(table, of_columns, of_rows)
    columns = table[:, of_rows].permute(0, 3, 1, 2)  # The interpolation of rows is independent of that of columns.
    columns = interpolated(columns.flatten(0, 1)[None], *to[0], 'bilinear')[0].unflatten(0, columns.shape[:2])
    return PooledBias(columns.permute(0, 2, 3, 1), of_columns, size=to[1])


def _by_products(table: Tensor, of: Axes, to: Axes, interpolate: bool) -> PooledBias:
    """The same as products with matrices."""
    rows, columns = (
        kept(_shares, table, *pair, table.dtype)
        if count * math.prod(pair[1]) <= MAX_KEPT
        else _shares(*pair, table.dtype, table.device)
        for count, *pair in zip(table.shape[1:], of, to)
    )
    by_row = (rows.flatten(1).t() @ table).unflatten(1, to[0])
    of_columns = kept(distances, table, *of[1], interpolate)[1]
    return PooledBias(by_row, of_columns, size=to[1] if interpolate else None, shares=columns)


def _shares(of: tuple[int, int], to: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """How much of each distance of an axis is in the bias of each pixel and pool, (D, pixels, pools)."""
    distance, places = distances(*of, True, device)
    shares = (places == torch.arange(len(distance), device=device)[:, None, None]).to(dtype)
    return interpolated(shares[None], *to, 'bilinear')[0]


def _forward(rows: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
    out = _empty(rows, columns, weight)
    call('relu_of_pairs', *(x.contiguous() for x in (rows, columns, weight)), out, _numbers(rows, columns, weight))
    return out


def _backward(grad: Tensor, *given: Tensor) -> list[Tensor]:
    given = [x.contiguous() for x in given]
    gradients = [empty_like(x) for x in given]
    call('relu_of_pairs_backward', *given, grad.contiguous(), *gradients, _numbers(*given))
    return gradients


def _numbers(rows: Tensor, columns: Tensor, weight: Tensor) -> list[int]:
    return [len(rows), *columns.shape, len(weight)]


def _empty(rows: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
    return rows.new_empty(weight.shape[0], rows.shape[0], columns.shape[0])  # len() makes a size of a graph constant


def _check(rows: Tensor, columns: Tensor, weight: Tensor) -> None:
    given = rows, columns, weight
    if any(x.dim() != 2 or x.shape[1] != rows.shape[1] for x in given):
        shapes = ', '.join(str(tuple(x.shape)) for x in given)
        raise ValueError(f'rows must be (R, K), columns (S, K) and weight (heads, K), not {shapes}')


def _check_backward(grad: Tensor, *given: Tensor) -> None:
    _check(*given)
    if grad.shape != tuple(x.shape[0] for x in (given[2], *given[:2])):
        raise ValueError(f'grad must be (heads, R, S), not {tuple(grad.shape)}')


_relu_of_pairs_backward = operator(
    'relu_of_pairs_backward(Tensor grad, Tensor rows, Tensor columns, Tensor weight) -> Tensor[]',
    _check_backward,
    _backward,
    lambda grad, *given: [empty_like(x) for x in given],
    by_torch(lambda rows, columns, weight: F.linear(F.relu(rows[:, None] + columns), weight).permute(2, 0, 1)),
)
#: sum_k weight[n, k] * relu(rows[r, k] + columns[s, k]): (R, K), (S, K), (heads, K) -> (heads, R, S). pairs.cpp
_relu_of_pairs = operator(
    'relu_of_pairs(Tensor rows, Tensor columns, Tensor weight) -> Tensor',
    _check,
    _forward,
    _empty,
    lambda *given: tuple(_relu_of_pairs_backward(*given)),
)
