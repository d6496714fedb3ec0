"""The sum with a branch and the layer norm of it on a GPU, in one pass over the maps.

A program works on all channels of some pixels. Sums are in float32, whatever the dtypes of the maps. In the backward
pass each program stores its sums for weight and bias, so that the order of additions is always the same. That pass
keeps the sum, as torch's norm does, and a mean and a scale for each pixel. torch.compile does not come here: it fuses
norms itself.
"""

from functools import lru_cache, partial
from math import prod

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import cdiv, limited, next_power_of_2, run

#: numbers of a tile, and the programs for a map in the backward pass, at most or about
NUMBERS, PROGRAMS = 2048, 432


class SumAndNorm(torch.autograd.Function):
    """``sum_and_norm`` of a contiguous x. Without a branch, its first result is x itself, so that the gradients of both
    results are summed in the kernel."""

    @staticmethod
    def forward(ctx, x, branch, weight, bias, kept, eps, rate, dtype) -> tuple[Tensor, Tensor | None]:
        total, normed, statistics = x, None, None
        if branch is not None:
            branch = branch.contiguous()
            both = x.dtype if x.dtype == branch.dtype else torch.promote_types(x.dtype, branch.dtype)
            total = torch.empty_like(x, dtype=both)
        if weight is not None:
            normed = torch.empty_like(x, dtype=dtype or total.dtype)
            statistics = x.new_empty(2, x.numel() // x.shape[-1], dtype=torch.float32)
        ctx.dtypes, ctx.numbers = (x.dtype, None if branch is None else branch.dtype), (eps, 1 / (1 - rate))
        if branch is not None or weight is not None:
            tiles, sizes = _sizes(x.shape)
            run(
                _sum_and_norm, (tiles,), x, branch, kept, weight, bias, total, normed, statistics, *ctx.numbers,
                **sizes, BRANCH=branch is not None, KEPT=kept is not None, NORM=weight is not None,
            )  # fmt: skip
        ctx.save_for_backward(total, weight, bias, kept, statistics)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    def backward(ctx, of_total: Tensor | None, of_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        # create_graph=True: torch's operators have second derivatives
        function = _differentiable if torch.is_grad_enabled() else _gradients
        found = function(of_total, of_normed, *ctx.saved_tensors, *ctx.numbers, *ctx.dtypes)
        return *found, None, None, None, None


def _gradients(
    of_total, of_normed, total, weight, bias, kept, statistics, eps, scale, dtype, branch_dtype
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Those of x, branch, weight and bias."""
    of_total = None if of_total is None else of_total.contiguous()
    of_normed = None if of_normed is None else of_normed.contiguous()
    of_x = torch.empty_like(total, dtype=dtype)
    of_branch = None if branch_dtype is None else torch.empty_like(total, dtype=branch_dtype)
    tiles, sizes = _sizes(total.shape)
    steps = cdiv(tiles, PROGRAMS)
    programs = cdiv(tiles, steps)
    parts = None if of_normed is None else total.new_empty(programs, 2, total.shape[-1], dtype=torch.float32)
    run(
        _sum_and_norm_gradient, (programs,), of_total, of_normed, total, weight, kept, statistics, of_x, of_branch,
        parts, scale, steps, **sizes, TOTAL=of_total is not None, NORM=of_normed is not None,
        BRANCH=of_branch is not None, KEPT=kept is not None,
    )  # fmt: skip
    if parts is None:
        return of_x, of_branch, None, None
    of_weight, of_bias = parts.sum(0).unbind()
    return of_x, of_branch, of_weight.to(weight.dtype), of_bias.to(bias.dtype)


def _differentiable(
    of_total, of_normed, total, weight, bias, kept, statistics, eps, scale, dtype, branch_dtype
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same by torch, with derivatives."""
    of_sum, others = of_total, (None, None)
    if of_normed is not None:
        exact = [each.float() for each in (total, weight, bias)]
        normed = F.layer_norm(exact[0], weight.shape, *exact[1:], eps)
        inputs = [each for each in (total, weight, bias) if each.requires_grad]
        grads = torch.autograd.grad(normed, inputs, of_normed.float(), create_graph=True)
        found = dict(zip(map(id, inputs), grads))
        of_norm, *others = (found.get(id(each)) for each in (total, weight, bias))
        if of_norm is not None:
            of_sum = of_norm if of_total is None else of_total + of_norm
    if of_sum is None:
        return None, None, *others
    of_branch = None
    if branch_dtype is not None:
        of_branch = of_sum if kept is None else of_sum * (kept * scale).view(-1, *[1] * (of_sum.dim() - 1))
        of_branch = of_branch.to(branch_dtype)
    return of_sum.to(dtype), of_branch, *others


@lru_cache
def _sizes(shape: torch.Size) -> tuple[int, dict[str, int]]:
    """Tiles of a map, and arguments of both kernels."""
    B, *places, C = shape
    columns, size = next_power_of_2(C), prod(places)
    rows, pixels = max(1, NUMBERS // columns), B * size
    sizes = dict(pixels=pixels, size=max(1, size), C=C, ROWS=rows, COLUMNS=columns)
    return cdiv(pixels, rows), sizes


@triton.jit
def _tile(first, pixels, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The pixels of a tile from the first one, which of them there are, and where its numbers are in memory."""
    row, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = first + row < pixels
    return first + row, there, first * C + (row[:, None] * C + c[None, :]), there[:, None] & (c < C)[None, :]


@triton.jit
def _channels(x, C, COLUMNS: tl.constexpr):
    c = tl.arange(0, COLUMNS)
    return tl.load(x + c, c < C, 0.0).to(tl.float32)[None, :]


@partial(limited, registers=64, num_warps=8)
@triton.jit
def _sum_and_norm(
    x, branch, kept, weight, bias, total, normed, statistics, eps, scale, pixels, size, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BRANCH: tl.constexpr, KEPT: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    pixel, there, place, inside = _tile(tl.program_id(0).to(tl.int64) * ROWS, pixels, C, ROWS, COLUMNS)
    value = tl.load(x + place, inside, 0.0).to(tl.float32)
    if BRANCH:
        added = tl.load(branch + place, inside, 0.0).to(tl.float32)
        if KEPT:
            added *= (tl.load(kept + pixel // size, there, 0.0) * scale)[:, None]
        rounded = (value + added).to(total.dtype.element_ty)
        tl.store(total + place, rounded, inside)
        value = rounded.to(tl.float32)
    if NORM:
        mean = tl.sum(value, 1) / C
        centred = tl.where((tl.arange(0, COLUMNS) < C)[None, :], value - mean[:, None], 0.0)
        inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
        out = centred * inverse[:, None] * _channels(weight, C, COLUMNS) + _channels(bias, C, COLUMNS)
        tl.store(normed + place, out, inside)
        tl.store(statistics + pixel, mean, there)
        tl.store(statistics + pixels + pixel, inverse, there)


@partial(limited, num_warps=8)
@triton.jit
def _sum_and_norm_gradient(
    of_total, of_normed, total, weight, kept, statistics, of_x, of_branch, parts, scale, steps, pixels, size, C,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOTAL: tl.constexpr, NORM: tl.constexpr, BRANCH: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, COLUMNS)
    if NORM:
        w = _channels(weight, C, COLUMNS)
        of_weight, of_bias = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(steps):
        first = (tl.program_id(0).to(tl.int64) * steps + step) * ROWS
        pixel, there, place, inside = _tile(first, pixels, C, ROWS, COLUMNS)
        if TOTAL:
            g = tl.load(of_total + place, inside, 0.0).to(tl.float32)
        else:
            g = tl.zeros((ROWS, COLUMNS), tl.float32)
        if NORM:
            mean, inverse = tl.load(statistics + pixel, there, 0.0), tl.load(statistics + pixels + pixel, there, 0.0)
            value = tl.load(total + place, inside, 0.0).to(tl.float32)
            value = (value - mean[:, None]) * inverse[:, None]
            of_value = tl.load(of_normed + place, inside, 0.0).to(tl.float32)
            of_weight += of_value * value
            of_bias += of_value
            of_value *= w
            along = tl.sum(of_value * value, 1) / C
            g += inverse[:, None] * (of_value - (tl.sum(of_value, 1) / C)[:, None] - value * along[:, None])
        tl.store(of_x + place, g, inside)
        if BRANCH:
            if KEPT:
                g *= (tl.load(kept + pixel // size, there, 0.0) * scale)[:, None]
            tl.store(of_branch + place, g, inside)
    if NORM:
        place = parts + tl.program_id(0) * 2 * C + c
        tl.store(place, tl.sum(of_weight, 0), c < C)
        tl.store(place + C, tl.sum(of_bias, 0), c < C)
