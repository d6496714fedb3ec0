"""RoIAlign and RoIPool. A region is (index of its image in the batch, x1, y1, x2, y2)."""

import torch
import torchvision  # noqa: F401, registers its operators
from torch import Tensor

from .dtypes import native, wide

#: samples that are computed at once
LIMIT = 2**24


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """RoIAlign, as in He et al., "Mask R-CNN".

    Args:
        input: feature map, (B, C, H, W).
        rois: (N, 5), in pixels of the image.
        output: (N, C, aligned_height, aligned_width), is written.
        argmax_y: like ``output``, gets the row of the largest sample if ``pool_mode`` is 0, and -1 where there is none.
        argmax_x: its column.
        spatial_scale: pixels of the feature map per pixel of the image.
        sampling_ratio: rows and columns of samples in a bin; 0 takes a sample per pixel of the feature map.
        pool_mode: 0 takes the largest sample of a bin, 1 the mean.
        aligned: pixels have their centres at 0.5.
    """
    size = (aligned_height, aligned_width)
    if pool_mode:
        output.copy_(
            torch.ops.torchvision.roi_align(native(input), native(rois), spatial_scale, *size, sampling_ratio, aligned)
        )
        return
    input, rois = wide(input), wide(rois)
    argmax_y.fill_(-1)
    argmax_x.fill_(-1)
    start = rois[:, [2, 1]] * spatial_scale - 0.5 * aligned  # y, x
    length = rois[:, [4, 3]] * spatial_scale - 0.5 * aligned - start
    bins = (length if aligned else length.clamp(min=1)) / rois.new_tensor(size)
    grids = torch.full_like(bins, sampling_ratio) if sampling_ratio > 0 else bins.ceil()
    for grid in grids.unique(dim=0):
        height, width = (int(samples) for samples in grid)
        if height < 1 or width < 1:
            continue  # an empty region has no samples
        samples = input.size(1) * size[0] * size[1] * height * width
        for some in (grids == grid).all(1).nonzero()[:, 0].split(max(1, LIMIT // samples)):
            # The samples are the means of as many bins of a finer grid, which have one sample each.
            fine = torch.ops.torchvision.roi_align(
                input, rois[some], spatial_scale, size[0] * height, size[1] * width, 1, aligned
            )
            fine = fine.unflatten(3, (size[1], width)).unflatten(2, (size[0], height)).transpose(3, 4).flatten(4)
            largest, index = fine.max(-1)
            output[some] = largest.to(output)
            for argmax, axis, at in ((argmax_y, 0, index // width), (argmax_x, 1, index % width)):
                of_bin = torch.arange(size[axis], device=index.device).view((-1, 1) if axis == 0 else (1, -1))
                position = of_bin + (at + 0.5) / (height, width)[axis]
                origin, step = (values[some, axis, None, None, None] for values in (start, bins))
                argmax[some] = (origin + position * step).to(argmax)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Write the gradient of the feature map to ``grad_input``; for the arguments see ``roi_align_forward``."""
    channels, height, width = grad_input.shape[1:]
    if pool_mode:
        grad_input.copy_(
            torch.ops.torchvision._roi_align_backward(
                native(grad_output),
                native(rois),
                spatial_scale,
                aligned_height,
                aligned_width,
                *grad_input.shape,
                sampling_ratio,
                aligned,
            )
        )
        return
    total = torch.zeros_like(grad_input, dtype=wide(grad_input).dtype)
    of_region = channels * aligned_height * aligned_width
    parts = (tensor.split(max(1, LIMIT // 16 // of_region)) for tensor in (argmax_y, argmax_x, grad_output, rois))
    for y, x, grad, some in zip(*parts):
        y, x, grad = wide(y), wide(x), wide(grad)
        grad = grad * ((y > -1) & (y <= height) & (x > -1) & (x <= width))
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        plane = some[:, 0].long()[:, None] * channels + torch.arange(channels, device=some.device)
        for row in (y.floor(), y.floor() + 1):
            for column in (x.floor(), x.floor() + 1):
                # The share of a row or column behind the last one is 0.
                share = (1 - (y - row).abs()) * (1 - (x - column).abs())
                pixel = row.long().clamp(max=height - 1) * width + column.long().clamp(max=width - 1)
                index = plane[:, :, None, None] * height * width + pixel
                total.view(-1).index_add_(0, index.flatten(), (grad * share).flatten())
    grad_input.copy_(total)


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """RoIPool, as in Girshick, "Fast R-CNN", but as in MMCV without rounding of the regions.

    Args:
        input: feature map, (B, C, H, W).
        rois: (N, 5), in pixels of the image, their ends included.
        output: (N, C, pooled_height, pooled_width), gets the largest value of each bin, 0 for an empty one.
        argmax: int32, like ``output``, gets the index of that value in its plane, -1 for an empty bin.
        spatial_scale: pixels of the feature map per pixel of the image.
    """
    channels, height, width = input.shape[1:]
    rois = wide(rois)
    start = rois[:, [2, 1]] * spatial_scale  # y, x
    length = (rois[:, [4, 3]] + 1) * spatial_scale - start
    # (N, rows or columns of bins): first pixel of a bin and the one after the last
    edges = []
    for axis, (bins, size) in enumerate(((pooled_height, height), (pooled_width, width))):
        step, index = length[:, axis, None] / bins, torch.arange(bins, device=rois.device)
        low, high = (index * step + start[:, axis, None]).floor(), ((index + 1) * step + start[:, axis, None]).ceil()
        edges.append((low.clamp(0, size).long(), high.clamp(0, size).long()))
    (top, bottom), (left, right) = edges
    argmax.fill_(-1)
    output.zero_()
    valid = (length > 0).all(1)
    rows, columns = (int((high - low).amax()) if len(rois) else 0 for low, high in edges)
    pixels = channels * pooled_height * pooled_width * max(rows * columns, 1)
    for some in valid.nonzero()[:, 0].split(max(1, LIMIT // pixels)):
        # (n, bins, 1, pixels of the largest bin, 1) and (n, 1, bins, 1, pixels)
        y = (top[some, :, None] + torch.arange(rows, device=rois.device))[:, :, None, :, None]
        x = (left[some, :, None] + torch.arange(columns, device=rois.device))[:, None, :, None, :]
        inside = (y < bottom[some][:, :, None, None, None]) & (x < right[some][:, None, :, None, None])
        index = (y.clamp(max=height - 1) * width + x.clamp(max=width - 1)).flatten(3)
        image = rois[some, 0].long()[:, None, None, None]
        values = input.flatten(2).transpose(1, 2)[image, index]  # (n, bins, bins, pixels, C)
        values = values.masked_fill(~inside.flatten(3)[..., None], -torch.inf)
        if not values.size(3):
            continue
        largest, at = values.max(3)
        filled = inside.flatten(3).any(3)[:, None]
        at = index.gather(3, at).permute(0, 3, 1, 2)
        output[some] = torch.where(filled, largest.permute(0, 3, 1, 2), 0).to(output)
        argmax[some] = torch.where(filled, at, -1).to(argmax)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Write the gradient of the feature map to ``grad_input``; for the arguments see ``roi_pool_forward``."""
    grad_input.copy_(
        torch.ops.torchvision._roi_pool_backward(
            native(grad_output), native(rois), argmax, spatial_scale, pooled_height, pooled_width, *grad_input.shape
        )
    )
