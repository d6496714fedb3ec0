"""The sum of the ELSA operator as products of matrices, for ONNX."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .reference import side
from .shifted import elsa_attention_shifted, static_sum

#: pixels of a row that are multiplied together by the backend 'band'
BAND = 8


def elsa_attention_band(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """The same sum as products of matrices: rows of :data:`BAND` pixels times all pixels that they attend to. Half of
    the numbers in these matrices are zero, but runtimes of ONNX need a fraction of the time of 49 shifted sums.

    With a multiplier, or dilated, it is 'shifted'."""
    if ghost_mul is not None or dilation > 1:
        return elsa_attention_shifted(logits, value, ghost_mul, ghost_add, dilation, dropout_p)
    # Zero times NaN or infinity would spread them to a whole band: they are left out, and put where they reach, as NaN.
    bad = ~(value.abs() < math.inf)  # isfinite without IsInf, which TensorRT 8.4 lacks
    out = _band_sum(F.dropout(logits.softmax(-1), dropout_p).to(value.dtype), value.masked_fill(bad, 0))
    out = out.masked_fill(_reached(bad, side(logits.shape[-1])), math.nan)
    return out if ghost_add is None else out + static_sum(value, ghost_add.flatten(1), 1)


def _reached(bad: Tensor, k: int) -> Tensor:
    """Which numbers of a map (B, H, W, C) have one of ``bad`` among their k x k neighbours."""
    counts = bad.float().permute(0, 3, 1, 2)
    counts = F.max_pool2d(counts, (k, 1), 1, (k // 2, 0))
    return F.max_pool2d(counts, (1, k), 1, (0, k // 2)).permute(0, 2, 3, 1) > 0


def _band_sum(weights: Tensor, value: Tensor) -> Tensor:
    """``sum_j weights[..., j] * shift_j(value)``; weights: (B, H, W, heads, k * k), value: (B, H, W, C)."""
    H, W = value.shape[1:3]
    heads, taps = weights.shape[3:]
    k = side(taps)
    border, blocks = k // 2, (W + BAND - 1) // BAND
    right = blocks * BAND - W
    width = BAND + k - 1  # columns that a block of pixels attends to
    # No dimension is the number of blocks alone: if that may be 1, torch does not export one graph for all sizes.
    # Pixel x of a block has weight (i, j) at column x + j of row i. A row of the matrix is one number shorter than what
    # it is cut from, so each pixel starts one column later.
    weights = F.pad(weights.permute(0, 3, 1, 2, 4), (0, 0, 0, right)).flatten(2, 3)  # (B, heads, H * columns, k * k)
    weights = F.pad(weights.unflatten(3, (k, k)), (0, BAND - 1)).flatten(3)
    weights = F.pad(weights, (0, 1)).unflatten(2, (-1, BAND)).flatten(3)
    weights = weights[..., : BAND * k * width].unflatten(3, (BAND, -1))  # (B, heads, H * blocks, BAND, k * width)
    padded = F.pad(value, (0, 0, border, border + right, border, border)).unflatten(3, (heads, -1))
    column = torch.arange(blocks * width, device=value.device)
    near = padded.permute(0, 3, 1, 2, 4).index_select(3, column // width * BAND + column % width)
    near = near.flatten(2, 3).unflatten(2, (-1, width)).flatten(3)  # (B, heads, (H + k - 1) * blocks, width * d)
    part = torch.arange(H * blocks * k, device=value.device)
    block = part // k
    near = near.index_select(2, block + part % k * blocks)  # k rows for each block
    near = near.unflatten(2, (-1, k)).flatten(3).unflatten(3, (k * width, -1))  # (B, heads, H * blocks, k * width, d)
    out = (weights @ near).flatten(2, 3).unflatten(2, (H, -1))  # (B, heads, H, columns, d)
    out = out.permute(0, 2, 3, 1, 4).flatten(3)
    return out.index_select(2, torch.arange(W, device=value.device))  # see mmattn.ops.any_size.crop
