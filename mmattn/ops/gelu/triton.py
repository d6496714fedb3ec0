"""GELU between two linear layers on a GPU, in one pass over the hidden map each way.

The first bias is added in float32, so autocast does not cast it. The backward pass keeps the map before the bias. It
computes the GELU again, which the gradient of the second layer's weight needs, in the pass for its gradient. A program
works on some channels of many pixels, tile by tile. Sums are in float32, whatever the dtype of the map. Each program
stores its own for the bias, so that the order of additions is always the same. torch.compile does not come here: it
fuses such operators itself.
"""

from functools import lru_cache, partial
from math import prod

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import cdiv, limited, next_power_of_2, run

#: channels of a tile, its numbers, and the programs for a map, at most or about
CHANNELS, NUMBERS, PROGRAMS = 64, 2048, 864


class GELULinear(torch.autograd.Function):
    """``gelu_linear`` of a contiguous x."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
        taken, (grid, sizes) = torch.empty_like(x), _parts(x.shape)
        run(_gelu, grid, x, bias, taken, **sizes)
        cast = weight.to(x.dtype)
        ctx.save_for_backward(x, bias, weight, cast, offset)
        return F.linear(taken, cast, offset.to(x.dtype))

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        # create_graph=True: torch's operators have second derivatives
        function = _differentiable if torch.is_grad_enabled() else _gradients
        return function(grad, *ctx.saved_tensors, *ctx.needs_input_grad[2:])


def _gradients(
    grad: Tensor, x: Tensor, bias: Tensor, weight: Tensor, cast: Tensor, offset: Tensor, *needed: bool
) -> tuple[Tensor | None, ...]:
    """Those of x, bias, weight and offset; of the last two if they are needed."""
    rows, taken, of_x, (grid, sizes) = grad.flatten(0, -2), torch.empty_like(x), torch.empty_like(x), _parts(x.shape)
    sums = x.new_empty(grid[0], x.shape[-1], dtype=torch.float32)
    run(_gelu_gradient, grid, x, bias, rows @ cast, taken, of_x, sums, **sizes)
    of_weight = (rows.t() @ taken.flatten(0, -2)).to(weight.dtype) if needed[0] else None
    of_offset = rows.sum(0, dtype=offset.dtype) if needed[1] else None
    return of_x, sums.sum(0).to(bias.dtype), of_weight, of_offset


def _differentiable(
    grad: Tensor, x: Tensor, bias: Tensor, weight: Tensor, cast: Tensor, offset: Tensor, *needed: bool
) -> tuple[Tensor | None, ...]:
    """The same by torch, with derivatives."""
    taken = F.gelu(x.float() + bias.float()).to(x.dtype)
    out = F.linear(taken, weight.to(x.dtype), offset.to(x.dtype))
    inputs = [each for each in (x, bias, weight, offset) if each.requires_grad]
    found = dict(zip(map(id, inputs), torch.autograd.grad(out, inputs, grad, create_graph=True)))
    return tuple(found.get(id(each)) for each in (x, bias, weight, offset))


@lru_cache
def _parts(shape: torch.Size) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of a map (B, ..., C): parts of its pixels, and of its channels; and arguments of both kernels."""
    *places, C = shape
    channels = min(CHANNELS, next_power_of_2(C))
    rows, pixels, across = max(1, NUMBERS // channels), prod(places), cdiv(C, channels)
    tiles = max(1, cdiv(cdiv(pixels, rows), max(1, PROGRAMS // across)))  # of a program
    sizes = dict(pixels=pixels, C=C, tiles=tiles, ROWS=rows, CHANNELS=channels)
    return (cdiv(pixels, tiles * rows), across), sizes


@triton.jit
def _tile(tile, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Of a tile of a program: where its numbers are in memory, and which of them are in the map."""
    first = (tl.program_id(0).to(tl.int64) * tiles + tile) * ROWS
    row, c = tl.arange(0, ROWS), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return first * C + (row[:, None] * C + c[None, :]), (first + row < pixels)[:, None] & (c < C)[None, :]


@triton.jit
def _normal(x):
    """The distribution function of the normal distribution: GELU is x times it."""
    return 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)


@partial(limited, registers=64, num_warps=8)
@triton.jit
def _gelu(x, bias, out, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :]
    for tile in range(tiles):
        place, inside = _tile(tile, pixels, C, tiles, ROWS, CHANNELS)
        taken = tl.load(x + place, inside, 0.0).to(tl.float32) + b
        tl.store(out + place, taken * _normal(taken), inside)


@partial(limited, registers=80, num_warps=8)
@triton.jit
def _gelu_gradient(x, bias, grad, out, of_x, sums, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b, total = tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :], tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in range(tiles):
        place, inside = _tile(tile, pixels, C, tiles, ROWS, CHANNELS)
        taken = tl.load(x + place, inside, 0.0).to(tl.float32) + b
        g = tl.load(grad + place, inside, 0.0).to(tl.float32)
        normal = _normal(taken)
        tl.store(out + place, taken * normal, inside)
        g *= normal + taken * 0.3989422804014327 * tl.exp(-0.5 * taken * taken)
        tl.store(of_x + place, g, inside)
        total += g
    tl.store(sums + tl.program_id(0) * C + c, tl.sum(total, 0), c < C)
