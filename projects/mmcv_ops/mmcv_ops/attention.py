"""Multi-scale deformable attention, on torch's ``grid_sample``."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .dtypes import native

#: samples times channels that are computed at once
LIMIT = 2**24


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection", equation 3.

    Args:
        value: values of all levels, (B, keys, heads, channels).
        value_spatial_shapes: height and width of each level, (levels, 2).
        value_level_start_index: first key of each level, (levels,).
        sampling_locations: (B, queries, heads, levels, points, 2), x and y from 0 to 1.
        attention_weights: (B, queries, heads, levels, points).
        im2col_step: not used: memory is bounded by ``LIMIT``.

    Returns:
        (B, queries, heads * channels).
    """
    batch, _, heads, channels = value.shape
    output = value.new_zeros(batch, sampling_locations.size(1), heads, channels, dtype=native(value).dtype)
    for b, queries, level, plane in _pieces(value, value_spatial_shapes, value_level_start_index, sampling_locations):
        samples = torch.grid_sampler_2d(plane, _grid(sampling_locations[b, queries, :, level]), 0, 0, False)
        weights = native(attention_weights)[b, queries, :, level].transpose(0, 1)  # (heads, queries, points)
        # (heads, channels, queries, points) x (heads, queries, points)
        output[b, queries] += torch.einsum('hcqp,hqp->qhc', samples, weights)
    return output.flatten(2).to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Add the gradients to the last three tensors; for the arguments see ``ms_deform_attn_forward``."""
    grad_output = native(grad_output).unflatten(2, value.shape[2:])
    total = torch.zeros_like(native(value))
    for b, queries, level, plane in _pieces(value, value_spatial_shapes, value_level_start_index, sampling_locations):
        grid = _grid(sampling_locations[b, queries, :, level])
        weights = native(attention_weights)[b, queries, :, level].transpose(0, 1)
        grad = grad_output[b, queries].permute(1, 2, 0)  # (heads, channels, queries)
        samples = torch.grid_sampler_2d(plane, grid, 0, 0, False)
        grad_attn_weight[b, queries, :, level] += torch.einsum('hcqp,hcq->qhp', samples, grad).to(grad_attn_weight)
        of_plane, of_grid = torch.ops.aten.grid_sampler_2d_backward(
            grad[..., None] * weights[:, None], plane, grid, 0, 0, False, [True, True]
        )
        start = int(value_level_start_index[level])
        total[b, start : start + plane[0, 0].numel()] += of_plane.flatten(2).permute(2, 0, 1)
        grad_sampling_loc[b, queries, :, level] += 2 * of_grid.transpose(0, 1).to(grad_sampling_loc)
    grad_value += total.to(grad_value)


def _pieces(
    value: Tensor, shapes: Tensor, starts: Tensor, locations: Tensor
) -> Iterator[tuple[int, slice, int, Tensor]]:
    """Yield an image, some queries, a level, and the values of the level, (heads, channels, height, width).

    The values are a view: no copy of them is made.
    """
    heads, channels = value.shape[2:]
    queries, points = locations.size(1), locations.size(4)
    step = max(1, LIMIT // max(1, heads * channels * points))
    for level, ((height, width), start) in enumerate(zip(shapes.tolist(), starts.tolist())):
        for b in range(len(value)):
            plane = native(value[b, start : start + height * width])
            plane = plane.permute(1, 2, 0).unflatten(2, (height, width))
            for first in range(0, queries, step):
                yield b, slice(first, first + step), level, plane


def _grid(locations: Tensor) -> Tensor:
    """Return (heads, queries, points, 2), from -1 to 1, of locations (queries, heads, points, 2) from 0 to 1."""
    return (2 * native(locations) - 1).transpose(0, 1)
