"""Layers on maps of tokens (B, H, W, C), in the form that is fastest in eager mode or in a graph."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backend import has_hooks
from .tracing import is_exporting, is_plain, is_tracing

#: numbers of a hidden map in memory at a time, for inference on the CPU: 4 MB of float32 fit the cache
MAX_HIDDEN = 2**20


def convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution of tokens: (B, H, W, C) -> (B, H', W', out_channels). In memory, tokens are a channels-last map
    (B, C, H, W), so nothing is copied."""
    if layer.weight.shape[1:] == (x.shape[3], 1, 1) and layer.stride == (1, 1) and is_exporting():
        # ONNX has no channels-last convolutions: runtimes would copy the map before and after.
        return F.linear(x, layer.weight.flatten(1), layer.bias)
    return nn.Conv2d.forward(layer, x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def before_convolution(layer: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer whose result a convolution reads: (B, H, W, C) -> (B, H, W, out_features)."""
    if is_exporting():  # A convolution writes the map as the next one reads it, channels first.
        weight = layer.weight[:, :, None, None]
        return F.conv2d(x.permute(0, 3, 1, 2), weight, layer.bias).permute(0, 2, 3, 1)
    return layer(x)


def halves_before_convolution(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of the channels of :func:`before_convolution`, of which a convolution reads the first."""
    if type(layer) is not nn.Linear or layer.bias is None or has_hooks(layer) or is_exporting():
        return before_convolution(layer, x).chunk(2, -1)
    # Of a map with both halves, the convolution would copy one, which takes longer than a depth-wise convolution.
    weights, biases = layer.weight.chunk(2), layer.bias.chunk(2)
    return F.linear(x, weights[0], biases[0]), F.linear(x, weights[1], biases[1])


def batch_normed(norm: nn.Module, x: Tensor) -> Tensor:
    """A batch norm of (B, C, H, W) over tokens (B, H, W, ...), whose last dimensions are the C channels."""
    if is_exporting() and not norm.training and norm.affine and norm.track_running_stats:
        # ONNX's norm would copy the map before and after.
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        offset = norm.bias - norm.running_mean * scale
        return x * scale.unflatten(-1, x.shape[3:]) + offset.unflatten(-1, x.shape[3:])
    return norm(x.flatten(3).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).unflatten(-1, x.shape[3:])


def split_channels(x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Tokens (B, H, W, C) of ``sizes`` channels each, which add up to C."""
    parts = x.split(sizes, dim=-1)
    if is_tracing() and torch.is_grad_enabled():
        # torch.compile stores each of them for the backward pass. If these copies had other strides than the traced
        # views, the graph of the backward pass would be bound to one size.
        return [part.contiguous() for part in parts]
    return parts


def by_rows(
    first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], x: Tensor, width: int, halo: int = 0
) -> Tensor:
    """``second(first(x))``, of the shape of the map x (B, H, W, C).

    Inference on the CPU computes large maps in parts of some rows. The hidden map of a whole one would not fit the
    cache, and the system would clear its memory again at every call.

    Args:
        first: to the hidden map, (B, H, W, width).
        second: from the hidden map to (B, H, W, C). Each pixel depends on its own pixel only.
        width: channels of the hidden map.
        halo: rows above and below a row on which ``first`` depends.
    """
    B, H, W, _ = x.shape
    rows = B * H  # all in one part
    if x.device.type == 'cpu' and not torch.is_grad_enabled() and is_plain(x):
        rows = max(1, MAX_HIDDEN // (W * width))
    if rows >= B * H:
        return second(first(x))
    out = torch.empty_like(x)
    samples = max(1, rows // H)
    for whole, written in zip(x.split(samples), out.split(samples)):
        for top in range(0, H, rows):
            start = max(0, top - halo)
            hidden = first(whole[:, start : top + rows + halo])
            written[:, top : top + rows] = second(hidden[:, top - start : top - start + rows])
    return out
