"""Shifted windows of Swin Transformer on maps (B, H, W, C) that windows divide. One traced graph serves all sizes."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from .tracing import is_plain, is_tracing, stream_of

#: displacement of windows along rows and columns; tensors while a graph is traced
Shifts = Sequence[int | Tensor]


def shifts_of(rows: int, columns: int, window_size: int, shift: int, small_maps: bool, device: torch.device) -> Shifts:
    """Displacements of rows x columns of windows. Unless ``small_maps``, it is 0 along an axis of a single window. Then
    it is a tensor in a graph, which must serve every size."""

    def along(count: int) -> int | Tensor:
        if small_maps or not shift:
            return shift
        if is_tracing():
            return (torch.arange(count * window_size, device=device)[-1] >= window_size) * shift
        return shift if count > 1 else 0

    return along(rows), along(columns)


def split_windows(x: Tensor, window_size: int, shift: int, shifts: Shifts) -> Tensor:
    """Pixels of shifted windows, (B, H, W, C) -> (B * windows, w * w, C); for the arguments, see :func:`roll`."""
    (B, H, W, C), w = x.shape, window_size
    x = roll(x, shift, shifts, -1).view(B, H // w, w, W // w, w, C)
    return x.transpose(2, 3).reshape(B * (H // w) * (W // w), w * w, C)


def join_windows(x: Tensor, rows: int, columns: int, window_size: int, shift: int, shifts: Shifts) -> Tensor:
    """The map of rows x columns of windows, (B * windows, w * w, C) -> (B, H, W, C)."""
    C, w = x.shape[-1], window_size
    x = x.view(-1, rows, columns, w, w, C).transpose(2, 3).reshape(-1, rows * w, columns * w, C)
    return roll(x, shift, shifts, 1)


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


def mask_for(x: Tensor, rows: int, columns: int, window_size: int, shifts: Shifts) -> Tensor | None:
    """:func:`shift_mask` for all windows of x (B, H, W, C), (B * windows, 1, w * w, w * w); None if none is shifted. It
    is kept for later calls where that is possible."""
    if not isinstance(shifts[0], Tensor) and not any(shifts):
        return None
    if is_plain(x):
        mask = _kept_mask(stream_of(x), rows, columns, window_size, tuple(shifts), x.device)
    else:
        mask = shift_mask(rows, columns, window_size, shifts, x.device)
    return mask.unsqueeze(1).repeat(x.shape[0], 1, 1, 1)


# Eight masks are those of four stages for two sizes of images. The largest one of an 800 x 1333 image has 13 MB, all
# four have 18 MB.
@functools.lru_cache(maxsize=8)
def _kept_mask(stream: torch.cuda.Stream | None, *arguments: object) -> Tensor:
    with torch.inference_mode(False):  # A training step could not use a mask made in inference mode.
        return shift_mask(*arguments)


def relative_bias(table: Tensor, window_size: int) -> Tensor:
    """Table (rows, (2w - 1) ** 2) of the offsets of key minus query -> (rows, w * w, w * w), the query first.

    It is made of views of the table, so that no module has to keep an index.
    """
    w = window_size
    table = table.unflatten(1, (2 * w - 1, 2 * w - 1))
    # Window (i, j) of the table has the keys of the query at (w - 1 - i, w - 1 - j).
    windows = table.unfold(1, w, 1).unfold(2, w, 1)  # (rows, i, j, row of the key, column of the key)
    return windows.flip(1, 2).flatten(3).flatten(1, 2)
