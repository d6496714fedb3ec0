import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_odd, check_whole
from ..ops.depthwise_conv import depthwise_conv
from ..ops.recompute import recompute
from ..ops.tokens import convolve
from .token_mixer import TOKEN_MIXERS


class TokenConv2d(nn.Conv2d):
    """Convolution of (B, H, W, C) tokens.

    Subclasses name ``nn.Conv2d`` as a base, too: MMEngine's ``init_cfg`` finds the layers of a type by their class and
    its direct bases.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_channels) -> (B, H', W', out_channels)."""
        return convolve(self, x)


class DepthwiseConv2d(TokenConv2d, nn.Conv2d):
    """Depth-wise convolution of tokens, zero outside the map, which keeps its size.

    Args:
        dim: channels C.
        size: side of the filters, odd.
    """

    #: whether x is added to the result
    skip = False

    def __init__(self, dim: int, size: int = 3) -> None:
        super().__init__(dim, dim, size, padding=size // 2, groups=dim)

    def forward(self, x: Tensor, gelu: bool = False, gated: bool = False) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C), after GELU if ``gelu``. If ``gated``, x has as many channels again, by which
        the result is multiplied."""
        return depthwise_conv(x, self.weight, self.bias, skip=self.skip, gelu=gelu, gated=gated)


class PatchConv2d(TokenConv2d, nn.Conv2d):
    """Convolution of r x r filters and stride r, which makes one token of r x r, as a linear layer on patches.

    On the CPU, forward and backward pass on tokens take about two thirds of a convolution's time. The gradients have
    the memory layout that a compiled graph expects. In bfloat16 on CPUs with AMX, oneDNN 3.10 (torch 2.11) computes
    such convolutions of 4 to 24 channels wrongly, of an image, too.

    Args:
        in_channels: channels in.
        out_channels: channels out.
        reduction: r.
    """

    def __init__(self, in_channels: int, out_channels: int, reduction: int) -> None:
        super().__init__(in_channels, out_channels, reduction, reduction)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, r * h, r * w, in_channels) -> (B, h, w, out_channels)."""
        if x.is_cuda:  # cuDNN copies no patches
            return super().forward(x)
        if self.stride == (1, 1):
            return self.project(x)
        return recompute(self.project, x, modules=[self], random=False, compiled=False)

    def project(self, x: Tensor) -> Tensor:
        """The same, but the patches, a copy of the map if r > 1, stay in memory for the backward pass."""
        r = self.stride[0]
        patches = x.unflatten(2, (-1, r)).unflatten(1, (-1, r)).transpose(2, 3).flatten(3)
        return F.linear(patches, self.weight.permute(0, 2, 3, 1).flatten(1), self.bias)


@TOKEN_MIXERS.register_module()
class Convolution(TokenConv2d, nn.Conv2d):
    """Ordinary convolution, zero outside the map, without projections before and after it: "DwConv" of VOLO-D1 in table
    5 of "ELSA: Enhanced Local Self-Attention", judging by its printed size.

    Args:
        dim: channels C.
        kernel_size: side k of the filters, odd.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, *, kernel_size: int = 3) -> None:
        check_whole('dim', dim)
        check_odd('kernel_size', kernel_size)
        super().__init__(dim, dim, kernel_size, padding=kernel_size // 2)
