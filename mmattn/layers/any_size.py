"""Maps padded to a multiple of a window or patch, and cropped again.

Sizes are written so that torch.compile and torch.export keep them simple, ceil(H / m) * m and nothing of H % m, and no
decision depends on whether anything is missing: one graph holds for every size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.tracing import is_tracing


def pad_to_multiple(x: Tensor, multiple: int, dims: tuple[int, int]) -> Tensor:
    """Add zeros below and to the right until ``multiple`` divides height and width.

    Args:
        x: (B, H, W, C) or (B, C, H, W).
        multiple: what shall divide both.
        dims: where height and width stand: (1, 2) or (2, 3).
    """
    below, right = (ceil_div(x.shape[dim], multiple) * multiple - x.shape[dim] for dim in dims)
    return F.pad(x, (0, 0) * (x.dim() - 1 - dims[1]) + (0, right, 0, below))


def repeat_to_multiple(x: Tensor, multiple: int, dims: tuple[int, int]) -> Tensor:
    """Repeat the last row and column until ``multiple`` divides height and width; arguments of ``pad_to_multiple``."""
    for dim in dims:
        size = x.shape[dim]
        whole = ceil_div(size, multiple) * multiple
        if is_tracing():
            x = x.index_select(dim, torch.arange(whole, device=x.device).clamp(max=size - 1))
        elif size < whole:
            rest, last = x.split((size - 1, 1), dim)
            x = torch.cat((rest, *[last] * (whole - size + 1)), dim)
    return x


def crop(x: Tensor, height: int, width: int) -> Tensor:
    """The upper left (B, height, width, C) of a (B, H, W, C) map."""
    if is_tracing():  # the strides of a view tell whether it is the whole, and a graph would hold for one case only
        rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
        return x[:, rows[:, None], columns]
    return x[:, :height, :width]


def ceil_div(size: int, divisor: int) -> int:
    """ceil(size / divisor), in the form that nests well for symbolic sizes."""
    return (size + divisor - 1) // divisor
