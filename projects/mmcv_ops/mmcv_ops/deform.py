"""Deformable convolutions, on torchvision's. Offsets are (y, x) in each of the kernel's places, as in MMCV."""

import torch
import torchvision  # noqa: F401, registers its operators
from torch import Tensor

from .dtypes import native


def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Dai et al., "Deformable Convolutional Networks".

    Args:
        input: (B, C, H, W).
        weight: (output channels, C / group, kH, kW).
        offset: (B, 2 * deformable_group * kH * kW, H', W'), in pixels.
        output: (B, output channels, H', W'), is written.
        columns: not used, as ``ones``.
        dW: step between the columns of the output, and dH between the rows.
        im2col_step: images that are computed at once.
    """
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group)
    for image, offsets, result in zip(*(tensor.split(im2col_step) for tensor in (input, offset, output))):
        result.copy_(_convolve(image, weight, offsets, None, None, geometry))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> None:
    """Write the gradients of ``input`` and ``offset``; for the arguments see ``deform_conv_forward``.

    torchvision computes all gradients at once. MMCV gives ``columns`` to ``deform_conv_backward_parameters`` next, so
    it carries the gradient of the weights.
    """
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group)
    total = torch.zeros_like(weight)
    parts = zip(*(tensor.split(im2col_step) for tensor in (gradOutput, input, offset, gradInput, gradOffset)))
    for grad, image, offsets, grad_image, grad_offsets in parts:
        of_image, of_weight, of_offsets, *_ = _gradients(grad, image, weight, offsets, None, None, geometry)
        grad_image.copy_(of_image)
        grad_offsets.copy_(of_offsets)
        total += of_weight
    columns.resize_(total.shape).copy_(total)


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> None:
    """Add ``scale`` times the gradient of the weights to ``gradWeight``, which ``columns`` holds if
    ``deform_conv_backward_input`` ran before."""
    if columns.shape == gradWeight.shape:
        gradWeight += scale * columns
        return
    geometry = (dH, dW, padH, padW, dilationH, dilationW, group, deformable_group)
    for grad, image, offsets in zip(*(tensor.split(im2col_step) for tensor in (gradOutput, input, offset))):
        # The values of the weights do not matter for their own gradient.
        gradWeight += scale * _gradients(grad, image, gradWeight, offsets, None, None, geometry)[1]


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Zhu et al., "Deformable ConvNets v2: More Deformable, Better Results".

    Args:
        input: (B, C, H, W).
        weight: (output channels, C / group, kernel_h, kernel_w).
        bias: (output channels,), or empty.
        ones: not used, as ``columns``.
        offset: (B, 2 * deformable_group * kernel_h * kernel_w, H', W'), in pixels.
        mask: (B, deformable_group * kernel_h * kernel_w, H', W'), factors of the samples.
        output: (B, output channels, H', W'), is written.
    """
    geometry = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group)
    # One image at a time, as in MMCV: torchvision takes up to 32, with as much memory for the columns of each.
    for image, offsets, factors, result in zip(*(tensor.split(1) for tensor in (input, offset, mask, output))):
        result.copy_(_convolve(image, weight, offsets, factors, bias if with_bias else None, geometry))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None:
    """Write the gradients; those of the weights and the bias are added. For the arguments see
    ``modulated_deform_conv_forward``."""
    geometry = (stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group)
    given = (grad_output, input, offset, mask, grad_input, grad_offset, grad_mask)
    for grad, image, offsets, factors, *results in zip(*(tensor.split(1) for tensor in given)):
        of_image, of_weight, of_offsets, of_factors, of_bias = _gradients(
            grad, image, weight, offsets, factors, bias if with_bias else None, geometry
        )
        for result, gradient in zip(results, (of_image, of_offsets, of_factors)):
            result.copy_(gradient)
        grad_weight += of_weight
        if with_bias:
            grad_bias += of_bias


def _convolve(
    image: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None, geometry: tuple[int, ...]
) -> Tensor:
    given = _complete(image, weight, offset, mask, bias)
    return torch.ops.torchvision.deform_conv2d(*given, *geometry, mask is not None)


def _gradients(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    geometry: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """Return the gradients of image, weight, offset, mask and bias."""
    given = _complete(image, weight, offset, mask, bias)
    gradients = torch.ops.torchvision._deform_conv2d_backward(
        native(grad).contiguous(), *given, *geometry, mask is not None
    )
    # The samples of padding with offset 0 are exactly one pixel outside. There MMCV has no gradient, torchvision has
    # that from inside.
    outside = _positions(given[2], weight.shape[2:], geometry) == -1
    gradients[2].unflatten(1, outside.shape[1:3]).masked_fill_(outside, 0)
    return gradients


def _positions(offset: Tensor, kernel: tuple[int, int], geometry: tuple[int, ...]) -> Tensor:
    """Return rows and columns of samples, (B, groups, 2 * places in the kernel, H', W')."""
    axes = []
    for size, taps, stride, padding, dilation in zip(offset.shape[2:], kernel, geometry, geometry[2:], geometry[4:]):
        place, tap = (torch.arange(number, device=offset.device) for number in (size, taps))
        axes.append(place * stride - padding + tap[:, None] * dilation)
    rows, columns = axes[0][:, None, :, None], axes[1][:, None]
    start = torch.stack(torch.broadcast_tensors(rows, columns), 2).flatten(0, 2)
    return offset.unflatten(1, (-1, len(start))) + start.to(offset.dtype)


def _complete(image: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """Return the tensors that torchvision wants, which has no way to leave out a mask or a bias."""
    mask = image.new_zeros(len(image), 1) if mask is None else mask
    bias = image.new_zeros(len(weight)) if bias is None else bias
    return [native(tensor) for tensor in (image, weight, offset, mask, bias)]
