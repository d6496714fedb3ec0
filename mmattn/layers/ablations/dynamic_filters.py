"""Dynamic filters that "ELSA: Enhanced Local Self-Attention" is compared with (table 5)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...arguments import check_choice, check_odd, check_whole, hidden_channels
from ...ops import neighbourhood_sum
from ..depthwise_conv import ValueFilter
from ..norm import batch_norm
from ..token_mixer import TOKEN_MIXERS


@TOKEN_MIXERS.register_module()
class DynamicDepthwiseConv(ValueFilter):
    """Depth-wise convolution with filters made for each image, and a static bias ("D-DwConv").

    The filters come from the mean of the values by a linear layer to C / 4, batch norm, ReLU and a linear layer.

    Args:
        norm_cfg: the batch norm, see :func:`mmattn.layers.batch_norm`. In training it needs more than one image.

    Further arguments, and errors: see :class:`ValueFilter`.
    """

    def __init__(
        self, dim: int, *, kernel_size: int = 7, norm_cfg: dict = dict(type='BN'), drop_rate: float = 0.0
    ) -> None:
        super().__init__(dim, kernel_size, drop_rate)
        check_whole('dim', dim, 4)
        self.reduce = nn.Linear(dim, dim // 4, bias=False)
        self.norm = batch_norm(dim // 4, norm_cfg)
        self.expand = nn.Linear(dim // 4, dim * kernel_size**2)
        self.bias = nn.Parameter(torch.zeros(dim))

    def kernels(self, value: Tensor) -> Tensor:
        """Values (B, H, W, C) -> (B, C, k * k)."""
        reduced = F.relu(self.norm(self.reduce(value.mean((1, 2)))[..., None, None])).flatten(1)
        return self.expand(reduced).unflatten(1, (-1, self.kernel_size**2))

    def filter(self, value: Tensor) -> Tensor:
        return convolve_each(value, self.kernels(value)) + self.bias


@TOKEN_MIXERS.register_module()
class DecoupledDynamicFilter(ValueFilter):
    r"""Decoupled dynamic filter ("DDF"): :math:`f_{ci} = \sum_j S_{i, j-i} T_{c, j-i} v_{cj}`.

    The filter S of a pixel is a linear map of its value. The filter T of a channel comes from the mean of the values by
    a linear layer, ReLU and a linear layer. Both are normalised by :func:`filter_norm`; then a constant, sqrt(2) / k,
    scales S, and learned numbers scale T.

    Args:
        reduction: channels between the layers of T divided by C, rounded down.
        combination: 'mul', or 'sum' for S + T in place of their product. The default is that of DDF; ELSA does not say
            which one it compares with.

    Further arguments, and errors: see :class:`ValueFilter`.
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel_size: int = 7,
        reduction: float = 0.2,
        combination: str = 'mul',
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(dim, kernel_size, drop_rate)
        check_odd('kernel_size', kernel_size, 3)  # one number has no deviation
        check_choice('combination', combination, ('mul', 'sum'))
        self.settings = dict(combination=combination)
        hidden, taps = hidden_channels(dim, reduction, 'reduction'), kernel_size**2
        self.spatial = nn.Linear(dim, taps)
        self.reduce, self.expand = nn.Linear(dim, hidden), nn.Linear(hidden, dim * taps)
        self.scale = nn.Parameter(torch.randn(dim, taps) * 2**0.5 / kernel_size)

    def kernels(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Values (B, H, W, C) -> S (B, H, W, 1, k * k) and T (B, C, k * k)."""
        spatial = filter_norm(self.spatial(value)).unsqueeze(3) * (2**0.5 / self.kernel_size)
        channel = self.expand(F.relu(self.reduce(value.mean((1, 2))))).unflatten(1, self.scale.shape)
        return spatial, filter_norm(channel) * self.scale

    def filter(self, value: Tensor) -> Tensor:
        spatial, channel = self.kernels(value)
        if self.settings['combination'] == 'mul':
            return neighbourhood_sum(spatial, value, channel)
        return neighbourhood_sum(spatial, value) + convolve_each(value, channel)


def filter_norm(x: Tensor) -> Tensor:
    """Filter normalisation of DDF: minus the mean, divided by the unbiased deviation, over the last dimension."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # half precision has no 1e-10
    wide = wide - wide.mean(-1, keepdim=True)
    deviation = torch.linalg.vector_norm(wide, dim=-1, keepdim=True) / (wide.shape[-1] - 1) ** 0.5
    return (wide / (deviation + 1e-10)).to(x.dtype)


def convolve_each(x: Tensor, filters: Tensor) -> Tensor:
    """Depth-wise convolution of each image, (B, H, W, C), with filters of its own, (B, C, k * k), k odd."""
    B, H, W, C = x.shape
    if not B:  # A convolution has at least one group.
        return x * filters.sum(-1)[:, None, None]
    k = math.isqrt(filters.shape[-1])
    maps, filters = x.permute(0, 3, 1, 2).reshape(1, B * C, H, W), filters.reshape(B * C, 1, k, k)
    return F.conv2d(maps, filters.to(x.dtype), padding=k // 2, groups=B * C).view(B, C, H, W).permute(0, 2, 3, 1)
