"""Operators that read a window around each pixel: CARAFE, PSAMask and masked convolution."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .dtypes import wide


def carafe_forward(
    features: Tensor,
    masks: Tensor,
    rfeatures: Tensor,
    routput: Tensor,
    rmasks: Tensor,
    output: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Wang et al., "CARAFE: Content-Aware ReAssembly of FEatures", equation 4.

    Args:
        features: (B, C, H, W).
        masks: (B, group_size * kernel_size^2, H * scale_factor, W * scale_factor).
        rfeatures: like ``features``, gets a copy, which MMCV gives to ``carafe_backward``.
        routput: not used, as ``rmasks``.
        output: (B, C, H * scale_factor, W * scale_factor), is written.
    """
    rfeatures.copy_(features)
    carafe_naive_forward(features, masks, output, kernel_size, group_size, scale_factor)


def carafe_backward(
    top_grad: Tensor,
    rfeatures: Tensor,
    masks: Tensor,
    rtop_grad: Tensor,
    rbottom_grad_hs: Tensor,
    rbottom_grad: Tensor,
    rmask_grad: Tensor,
    bottom_grad: Tensor,
    mask_grad: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Write the gradients of features and masks to ``bottom_grad`` and ``mask_grad``; see ``carafe_forward``."""
    carafe_naive_backward(top_grad, rfeatures, masks, bottom_grad, mask_grad, kernel_size, group_size, scale_factor)


def carafe_naive_forward(
    features: Tensor, masks: Tensor, output: Tensor, kernel_size: int, group_size: int, scale_factor: int
) -> None:
    """``carafe_forward`` without tensors to work with."""
    padded = F.pad(wide(features), [kernel_size // 2] * 4)
    masks = _cells(masks, group_size, scale_factor)
    total = torch.zeros_like(_cells(output, group_size, scale_factor), dtype=padded.dtype)
    for tap, window in enumerate(_windows(padded, kernel_size)):
        total.addcmul_(_cells(window, group_size, 1), masks[:, :, tap, None])
    _cells(output, group_size, scale_factor).copy_(total)


def carafe_naive_backward(
    top_grad: Tensor,
    features: Tensor,
    masks: Tensor,
    bottom_grad: Tensor,
    mask_grad: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """Write the gradients of features and masks to ``bottom_grad`` and ``mask_grad``; see ``carafe_forward``."""
    padded = F.pad(wide(features), [kernel_size // 2] * 4)
    total = torch.zeros_like(padded)
    grad, masks, mask_grad = (_cells(tensor, group_size, scale_factor) for tensor in (top_grad, masks, mask_grad))
    # b group, c channel of a group, y x pixel of the features, i j pixel of the output
    for tap, (window, into) in enumerate(zip(_windows(padded, kernel_size), _windows(total, kernel_size))):
        window = _cells(window, group_size, 1)[..., 0, :, 0]
        mask_grad[:, :, tap] = torch.einsum('bgcyixj,bgcyx->bgyixj', wide(grad), window).to(mask_grad)
        into += torch.einsum('bgcyixj,bgyixj->bgcyx', wide(grad), wide(masks[:, :, tap])).flatten(1, 2)
    edge = kernel_size // 2
    bottom_grad.copy_(total[:, :, edge : total.size(2) - edge, edge : total.size(3) - edge])


def _cells(tensor: Tensor, groups: int, scale: int) -> Tensor:
    """Return a view (B, groups, C / groups, H, scale, W, scale) of a tensor (B, C, H * scale, W * scale)."""
    return tensor.unflatten(3, (-1, scale)).unflatten(2, (-1, scale)).unflatten(1, (groups, -1))


def _windows(padded: Tensor, size: int) -> Iterator[Tensor]:
    """Yield views of a padded tensor, shifted to each place of a window."""
    height, width = padded.size(2) - size + 1, padded.size(3) - size + 1
    for y in range(size):
        for x in range(size):
            yield padded[:, :, y : y + height, x : x + width]


def psamask_forward(
    input: Tensor,
    output: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Zhao et al., "PSANet: Point-wise Spatial Attention Network for Scene Parsing": attention of a pixel to those in
    its window becomes attention to all pixels.

    Args:
        input: (num_, h_mask * w_mask, h_feature, w_feature).
        output: (num_, h_feature * w_feature, h_feature, w_feature), is written.
        psa_type: 0 collects: the second axis of ``output`` is the other pixel; 1 distributes: it is the pixel itself.
        half_h_mask: rows of the window above its centre, and half_w_mask columns at its left.
    """
    masks = input.view(num_, h_mask, w_mask, h_feature, w_feature)
    rows, columns = (torch.arange(size, device=input.device) for size in (h_feature, w_feature))
    # the place in the window of the pixel (y, x), seen from the pixel (h, w): axes y, x, h, w
    y = rows[:, None, None, None] - rows[:, None] + half_h_mask
    x = columns[:, None, None] - columns + half_w_mask
    inside = (y >= 0) & (y < h_mask) & (x >= 0) & (x < w_mask)
    values = masks[:, y.clamp(0, h_mask - 1), x.clamp(0, w_mask - 1), rows[:, None], columns]
    values = values.masked_fill_(~inside, 0).view(num_, h_feature * w_feature, -1)
    output.copy_((values.transpose(1, 2) if psa_type else values).view_as(output))


def psamask_backward(
    grad_output: Tensor,
    grad_input: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Write the gradient of the masks to ``grad_input``; for the arguments see ``psamask_forward``."""
    grad = grad_output.view(num_, h_feature * w_feature, -1)
    grad = (grad.transpose(1, 2) if psa_type else grad).unflatten(2, (h_feature, -1)).unflatten(1, (h_feature, -1))
    rows, columns = (torch.arange(size, device=grad.device) for size in (h_feature, w_feature))
    # the pixel in a place of the window, seen from the pixel (h, w): axes of the window, h, w
    y = torch.arange(h_mask, device=grad.device)[:, None, None, None] + rows[:, None] - half_h_mask
    x = torch.arange(w_mask, device=grad.device)[:, None, None] + columns - half_w_mask
    inside = (y >= 0) & (y < h_feature) & (x >= 0) & (x < w_feature)
    values = grad[:, y.clamp(0, h_feature - 1), x.clamp(0, w_feature - 1), rows[:, None], columns]
    grad_input.copy_(values.masked_fill_(~inside, 0).view_as(grad_input))


def masked_im2col_forward(
    im: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    col: Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """Write the windows of some pixels to ``col``, for a convolution at these pixels only.

    Args:
        im: (1, C, H, W).
        mask_h_idx: rows of the pixels, (N,), and mask_w_idx their columns.
        col: (C * kernel_h * kernel_w, N).
    """
    # Pixels of an output smaller than the image read the zeros behind its end.
    padded = F.pad(im[0], (pad_w, kernel_w, pad_h, kernel_h))
    rows = mask_h_idx + torch.arange(kernel_h, device=im.device)[:, None, None]
    columns = mask_w_idx + torch.arange(kernel_w, device=im.device)[:, None]
    col.copy_(padded[:, rows, columns].flatten(0, 2))


def masked_col2im_forward(
    col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor, height: int, width: int, channels: int
) -> None:
    """Write the results of ``N`` pixels, (channels, N), to their places in ``im``, (1, channels, height, width)."""
    im[0, :, mask_h_idx, mask_w_idx] = col.to(im)
