"""Padding, cropping and pooling of maps of any size. One traced graph serves all sizes.

Sizes are written as ceil(H / m) * m, without H % m, because torch.compile and torch.export simplify that form. No
decision depends on whether a map needs padding.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backend import check_maps, check_triton, has_hooks, named_backend, triton_takes
from .tracing import is_exporting, is_tracing, kept


def pad_to_multiple(x: Tensor, multiple: int, dims: tuple[int, int]) -> Tensor:
    """Add zeros at the bottom and the right until ``multiple`` divides height and width.

    Args:
        x: (B, H, W, C) or (B, C, H, W).
        multiple: the divisor of both sides.
        dims: dimensions of height and width: (1, 2) or (2, 3).
    """
    below, right = (ceil_div(x.shape[dim], multiple) * multiple - x.shape[dim] for dim in dims)
    return F.pad(x, (0, 0) * (x.dim() - 1 - dims[1]) + (0, right, 0, below))


def repeat_to_multiple(x: Tensor, multiple: int, dims: tuple[int, int]) -> Tensor:
    """Repeat the last row and column until ``multiple`` divides height and width; arguments as ``pad_to_multiple``."""
    if is_exporting():  # ONNX pads faster than it gathers.
        below, right = (ceil_div(x.shape[dim], multiple) * multiple - x.shape[dim] for dim in dims)
        x = x if dims == (2, 3) else x.permute(0, 3, 1, 2)
        x = F.pad(x, (0, right, 0, below), 'replicate')
        return x if dims == (2, 3) else x.permute(0, 2, 3, 1)
    for dim in dims:
        size = x.shape[dim]
        padded = ceil_div(size, multiple) * multiple
        if is_tracing():
            x = x.index_select(dim, torch.arange(padded, device=x.device).clamp(max=size - 1))
        elif size < padded:
            rest, last = x.split((size - 1, 1), dim)
            x = torch.cat((rest, *[last] * (padded - size + 1)), dim)
    return x


def crop(x: Tensor, height: int, width: int) -> Tensor:
    """The upper left (B, height, width, C) of a map (B, H, W, C)."""
    if is_tracing():  # The strides of a slice tell whether it is the whole map: a graph would hold for one case only.
        return _gather(x, torch.arange(height, device=x.device), torch.arange(width, device=x.device), (1, 2))
    return x[:, :height, :width]


def crop_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """The upper left of a map (B, H, W, C) whose sides ``multiple`` divides. A smaller map gets zeros at the bottom and
    the right; a traced graph serves larger ones only."""
    below, right = (multiple - size for size in x.shape[1:3])
    if not is_tracing() and max(below, right) > 0:
        x = F.pad(x, (0, 0, 0, max(right, 0), 0, max(below, 0)))
    return crop(x, *(size // multiple * multiple for size in x.shape[1:3]))


def every_second_pixel(x: Tensor) -> Tensor:
    """Every second row and column, from the first. (B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2))."""
    if is_tracing():  # see crop
        rows, columns = (2 * torch.arange(ceil_div(size, 2), device=x.device) for size in x.shape[2:])
        return _gather(x, rows, columns, (2, 3))
    return x[..., ::2, ::2]


def half_convolution(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A 1 x 1 convolution, without a stride of its own, at :func:`every_second_pixel`.

    With a stride, the backward pass of 1 x 1 convolutions in torch 2.11, over channels-last maps of few channels on the
    CPU, writes outside its memory. An exported graph has no backward pass, so its convolution has the stride. On a GPU,
    the stride saves two copies, and a gradient whose zeros are in another layout.
    """
    strided = x.is_cuda and not is_tracing() and type(layer) is nn.Conv2d and not has_hooks(layer)
    if strided or is_exporting():
        return F.conv2d(x, layer.weight, layer.bias, 2)
    return layer(every_second_pixel(x))


def max_pool(x: Tensor) -> Tensor:
    """3 x 3 max pooling of stride 2 of values >= 0. (B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2))."""
    if not is_tracing():
        return F.max_pool2d(x, 3, 2, 1)
    # While tracing, torch asks for the remainder of the size. The size below is odd in any case.
    return F.max_pool2d(F.pad(pad_to_multiple(x, 2, (2, 3)), (1, 0, 1, 0)), 3, 2)


def average_pool(x: Tensor, backend: str | None = None) -> Tensor:
    """2 x 2 average pooling; an odd last row or column is pooled alone.

    Args:
        x: (B, C, H, W).
        backend: 'reference', 'sums' (which do not keep the map for the backward pass) or 'triton' (GPUs, for
            channels-last maps). None chooses the fastest one that can serve.

    Returns:
        (B, C, ceil(H / 2), ceil(W / 2)).

    Raises:
        ValueError: if x is not of floating-point numbers, or the backend is unknown or cannot run here.
    """
    check_maps(x=x)
    if backend is None:
        on_gpu = x.is_cuda and not is_tracing()  # see max_pool
        backend = 'sums' if not on_gpu else 'triton' if triton_takes(x) else 'reference'
    return named_backend(AVERAGE_POOL, backend)(x)


def _pool_by_sums(x: Tensor) -> Tensor:
    x = repeat_to_multiple(x, 2, (2, 3))
    if is_exporting():
        return F.avg_pool2d(x, 2)
    for dim in (2, 3):
        first, second = x.unflatten(dim, (-1, 2)).unbind(dim + 1)
        x = first + second
    return x / 4


def _pool_by_triton(x: Tensor) -> Tensor:
    """triton_maps.py, imported when it is needed: Triton is not everywhere."""
    check_triton(x)
    from .triton_maps import average_pool_triton

    return average_pool_triton(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


AVERAGE_POOL: dict[str, Callable[[Tensor], Tensor]] = {
    'reference': lambda x: F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False),
    'sums': _pool_by_sums,
    'triton': _pool_by_triton,
}


def pools(size: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the last pixels (count) of the pools of an axis, as torch's adaptive pooling has them."""
    pool = torch.arange(count, device=device)
    return pool * size // count, (pool * size + size + count - 1) // count - 1


def pooled_size(size: int, reduction: int) -> int:
    """A side divided by ``reduction``, rounded down, but at least 1; a traced graph does not ask."""
    return size // reduction if is_tracing() else max(size // reduction, 1)


def distances(size: int, count: int, known: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The distances, in pixels, of the pixels of an axis from the centres of its pools.

    Args:
        known: whether sizes are numbers in a traced graph, too.

    Returns:
        all that there may be, (D), and the place of that of each pixel and pool among them, (size, count). They are one
        pixel apart. If pools differ in length, those in between follow. So the places of neighbouring pixels are
        neighbours.
    """
    alike = (known or not is_tracing()) and size % count == 0
    furthest = 2 * size - (size // count if alike else 1) - 1
    first, last = pools(size, count, device)
    halves = 2 * torch.arange(size, device=device)[:, None] - (first + last)
    distance, place = torch.arange(-furthest, furthest + 1, 2, device=device), (halves + furthest) // 2
    if not alike:
        distance = torch.cat((distance, torch.arange(1 - furthest, furthest, 2, device=device)))
        place = place + (halves + furthest) % 2 * (furthest + 1)
    return distance / 2, place


def pool_to(x: Tensor, height: int, width: int) -> Tensor:
    """Adaptive average pooling: (B, H, W, C) -> (B, height, width, C)."""
    if not is_tracing():
        if not (x.is_cuda or x.requires_grad):
            return F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), (height, width)).permute(0, 2, 3, 1)
        if x.is_cuda and not (x.shape[1] % height or x.shape[2] % width):
            pool = x.shape[1] // height, x.shape[2] // width
            return F.avg_pool2d(x.permute(0, 3, 1, 2), pool).permute(0, 2, 3, 1)
    # ONNX has no adaptive pooling of any size. Its gradient on a GPU is not deterministic. That on a CPU has a memory
    # layout of its own, beside which the gradient of GELU is wrong in torch 2.1.
    for dim, count in ((1, height), (2, width)):
        weights = kept(_pool_weights, x, x.shape[dim], count, x.dtype)
        x = (weights @ x.flatten(2)).unflatten(2, x.shape[2:]) if dim == 1 else weights @ x
    return x


def _pool_weights(size: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(count, size): how much of the pixels of an axis is in each pool."""
    (first, last), place = pools(size, count, device), torch.arange(size, device=device)
    inside = ((place >= first[:, None]) & (place <= last[:, None])).to(dtype)
    return inside / inside.sum(1, keepdim=True)


def fold(patches: Tensor, height: int, width: int) -> Tensor:
    """3 x 3 patches around every second pixel, (B, C * 9, places) -> their sum (B, height, width, C)."""
    if is_exporting():  # TensorRT has no Col2Im, which a fold becomes.
        C = patches.shape[1] // 9
        spread = torch.eye(9, dtype=patches.dtype, device=patches.device).view(9, 1, 3, 3).repeat(C, 1, 1, 1)
        patches = patches.unflatten(2, (ceil_div(height, 2), ceil_div(width, 2)))
        added = F.conv_transpose2d(patches, spread, stride=2, padding=1, output_padding=1, groups=C)
        return added[..., :height, :width].permute(0, 2, 3, 1)
    return F.fold(patches, (height, width), 3, padding=1, stride=2).permute(0, 2, 3, 1)


def ceil_div(size: int, divisor: int) -> int:
    """ceil(size / divisor), in a form that stays simple when symbolic sizes are nested."""
    return (size + divisor - 1) // divisor


def _gather(x: Tensor, rows: Tensor, columns: Tensor, dims: tuple[int, int]) -> Tensor:
    index = (slice(None),) * dims[0] + (rows[:, None], columns)
    return x[index]
