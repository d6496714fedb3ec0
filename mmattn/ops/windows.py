"""Shifted windows of Swin Transformer on maps (B, H, W, C) that windows divide. One traced graph serves all sizes."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .tracing import is_plain, is_tracing, stream_of

#: displacement of windows along rows and columns; tensors while a graph is traced
Shifts = Sequence[int | Tensor]


def shift_along(count: int, window_size: int, shift: int, device: torch.device) -> int | Tensor:
    """The displacement along an axis of ``count`` windows, 0 along one of a single window. It is a tensor in a graph,
    which must serve every count."""
    if not shift:
        return 0
    if is_tracing():
        return (torch.arange(count * window_size, device=device)[-1] >= window_size) * shift
    return shift if count > 1 else 0


def roll(x: Tensor, shift: int, shifts: Shifts, sign: int) -> Tensor:
    """A map (B, H, W, C), rolled by the shifts times ``sign``.

    Args:
        shift: what shifts are, where they are not 0.
    """
    if not shift:
        return x
    if not is_tracing():
        return x.roll([sign * each for each in shifts], (1, 2)) if any(shifts) else x
    for dim, each in zip((1, 2), shifts):
        # Not torch.roll: torch.compile needs minutes to simplify the remainders of its indices.
        first = x.shape[dim] - shift if sign > 0 else shift
        rolled = torch.cat(x.split((first, x.shape[dim] - first), dim)[::-1], dim)
        x = torch.where(each > 0, rolled, x) if isinstance(each, Tensor) else rolled
    return x


def shift_mask(rows: int, columns: int, window_size: int, shifts: Shifts, device: torch.device | None = None) -> Tensor:
    """(rows * columns, w * w, w * w): -100 between pixels that only the cyclic shift made neighbours, else 0."""

    def region(count: int, shift: int | Tensor) -> Tensor:
        size = count * window_size
        position = torch.arange(size, device=device)
        return (position >= size - window_size).long() + (position >= size - shift).long()

    regions = region(rows, shifts[0])[:, None] * 3 + region(columns, shifts[1])
    regions = regions.view(rows, window_size, columns, window_size).transpose(1, 2).reshape(rows * columns, -1)
    return -100.0 * (regions[:, None] != regions[:, :, None])


def mask_for(x: Tensor, rows: int, columns: int, window_size: int, shifts: Shifts) -> Tensor:
    """:func:`shift_mask` on the device of ``x``, kept for later calls where that is possible."""
    if not is_plain(x):
        return shift_mask(rows, columns, window_size, shifts, x.device)
    return _kept_mask(stream_of(x), rows, columns, window_size, tuple(shifts), x.device)


# Eight masks are those of four stages for two sizes of images. The largest one of an 800 x 1333 image has 13 MB, all
# four have 18 MB.
@functools.lru_cache(maxsize=8)
def _kept_mask(stream: torch.cuda.Stream | None, *arguments: object) -> Tensor:
    with torch.inference_mode(False):  # A training step could not use a mask made in inference mode.
        return shift_mask(*arguments)
