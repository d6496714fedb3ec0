"""Tables of positions for maps of other sizes. One traced graph serves all sizes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import without_autocast
from .tracing import is_tracing


def interpolated(table: Tensor, height: int, width: int, mode: str = 'bicubic') -> Tensor:
    """A table of positions (1, C, h, w) -> (1, C, height, width), with bicubic interpolation, as the releases of ELSA
    and Swin have it, or with mode 'bilinear', as that of TransNeXt has it."""
    if not is_tracing() and table.shape[2:] == (height, width):
        return table
    if not torch.are_deterministic_algorithms_enabled():
        return F.interpolate(table, (height, width), mode=mode, align_corners=False)
    # The gradient of F.interpolate is not deterministic on a GPU. That of a product with matrices is.
    ones = (torch.eye(length).to(table)[None, None] for length in table.shape[2:])
    rows, columns = (
        F.interpolate(one, (size, len(one[0, 0])), mode=mode, align_corners=False)[0, 0]
        for one, size in zip(ones, (height, width))
    )
    with without_autocast(table):
        return rows @ table @ columns.mT


def resampled(table: Tensor, height: int, width: int) -> Tensor:
    """A table of positions (1, C, h, w) -> (1, C, height, width), as timm's ``resample_abs_pos_embed`` does it: bicubic
    interpolation with antialiasing.

    It is a product with a matrix for the rows and one for the columns. torch does not compile ``F.interpolate`` with
    antialiasing, and does not have it for half precision.
    """
    if not is_tracing() and table.shape[2:] == (height, width):
        return table
    x = table if table.dtype == torch.float64 else table.float()
    rows, columns = (_cubic(length, size, x) for length, size in zip((height, width), table.shape[2:]))
    with without_autocast(table):
        return (rows @ x @ columns.mT).to(table.dtype)


def _cubic(length: int, size: int, like: Tensor) -> Tensor:
    """(length, size): how much of each of ``size`` points is in each of ``length`` points on the same line.

    The kernel is Keys' cubic one with a = -1/2. It is 4 spacings wide, of the points that are farther apart.
    """
    places = torch.arange(length, device=like.device, dtype=torch.float64) + 0.5
    spacing = size / (places[-1] + 0.5)
    points = torch.arange(size, device=like.device, dtype=torch.float64) + 0.5
    t = (points - places[:, None] * spacing).abs() / spacing.clamp(min=1)
    near, far = (1.5 * t - 2.5) * t * t + 1, ((-0.5 * t + 2.5) * t - 4) * t + 2
    weights = torch.where(t < 1, near, torch.where(t < 2, far, 0))
    return (weights / weights.sum(1, keepdim=True)).to(like.dtype)
