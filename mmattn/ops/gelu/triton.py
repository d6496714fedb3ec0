"""GELU of a map plus a bias on a GPU, in one pass over the map each way.

A program works on some channels of many pixels, tile by tile. Sums are in float32, whatever the dtype of the map. Each
program stores its own for the bias, so that the order of additions is always the same. The backward pass keeps the map.
torch.compile does not come here: it fuses such operators itself.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gpu import limited, run

#: channels of a tile, its numbers, and the programs for a map, at most or about
CHANNELS, NUMBERS, PROGRAMS = 64, 2048, 864


class BiasedGELU(torch.autograd.Function):
    """``biased_gelu`` of a contiguous x."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        out, (grid, sizes) = torch.empty_like(x), _parts(x)
        run(_forward, grid, x, bias, out, **sizes)
        ctx.save_for_backward(x, bias)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        # create_graph=True: torch's operators have second derivatives
        return (_differentiable if torch.is_grad_enabled() else _gradients)(grad, *ctx.saved_tensors)


def _gradients(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Those of x and bias."""
    grad, of_x, (grid, sizes) = grad.contiguous(), torch.empty_like(x), _parts(x)
    sums = x.new_empty(grid[0], x.shape[-1], dtype=torch.float32)
    run(_backward, grid, x, bias, grad, of_x, sums, **sizes)
    return of_x, sums.sum(0).to(bias.dtype)


def _differentiable(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same by torch, with derivatives."""
    taken = x.float() + bias.float()
    normal = 0.5 + 0.5 * torch.erf(taken * 0.5**0.5)
    of_taken = grad * (normal + taken * 0.3989422804014327 * torch.exp(-0.5 * taken * taken))
    return of_taken.to(x.dtype), of_taken.flatten(0, -2).sum(0).to(bias.dtype)


def _parts(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid of a map (B, ..., C): parts of its pixels, and of its channels; and arguments of both kernels."""
    C = x.shape[-1]
    channels = min(CHANNELS, triton.next_power_of_2(C))
    rows, pixels, across = max(1, NUMBERS // channels), x.numel() // C, triton.cdiv(C, channels)
    tiles = max(1, triton.cdiv(triton.cdiv(pixels, rows), max(1, PROGRAMS // across)))  # of a program
    sizes = dict(pixels=pixels, C=C, tiles=tiles, ROWS=rows, CHANNELS=channels)
    return (triton.cdiv(pixels, tiles * rows), across), sizes


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


_limited = partial(limited, registers=64, num_warps=8)


@_limited
@triton.jit
def _forward(x, bias, out, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :]
    for tile in range(tiles):
        place, inside = _tile(tile, pixels, C, tiles, ROWS, CHANNELS)
        taken = tl.load(x + place, inside, 0.0).to(tl.float32) + b
        tl.store(out + place, taken * _normal(taken), inside)


@_limited
@triton.jit
def _backward(x, bias, grad, of_x, sums, pixels, C, tiles, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b, total = tl.load(bias + c, c < C, 0.0).to(tl.float32)[None, :], tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in range(tiles):
        place, inside = _tile(tile, pixels, C, tiles, ROWS, CHANNELS)
        taken = tl.load(x + place, inside, 0.0).to(tl.float32) + b
        g = tl.load(grad + place, inside, 0.0).to(tl.float32)
        g *= _normal(taken) + taken * 0.3989422804014327 * tl.exp(-0.5 * taken * taken)
        tl.store(of_x + place, g, inside)
        total += g
    tl.store(sums + tl.program_id(0) * C + c, tl.sum(total, 0), c < C)
