"""Feed-forward layers of blocks, on (B, H, W, C) tokens."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.backend import has_hooks
from ..ops.gelu import gelu_gated, gelu_linear_triton, kernels_serve
from ..ops.tokens import before_convolution, by_rows, halves_before_convolution
from .shunted import LocalEnhancement
from .token_conv import DepthwiseConv2d


class MLP(nn.Module):
    """Two linear layers with a GELU between them, as timm's ``Mlp``.

    Args:
        dim: channels.
        hidden_dim: channels of the hidden map.
        drop: dropout after each layer.
    """

    #: rows above and below a row on which the hidden map depends
    halo = 0
    read_by = 'fc1'

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim  # fc1 may become a layer that does not tell its size, as LoRA's
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, H, W, dim)."""
        if self.is_fused(x):
            first, second = self.fc1, self.fc2
            hidden = F.linear(x, first.weight)
            return self.drop2(gelu_linear_triton(hidden, first.bias, second.weight, second.bias))
        return by_rows(self.hidden, self.project, x, self.hidden_dim, self.halo)

    def is_fused(self, x: Tensor) -> bool:
        """Whether one operator does what follows the product of the first layer: of no subclass with other layers, and
        without dropout or hooks in between."""
        if type(self).hidden is not MLP.hidden or type(self).project is not MLP.project:
            return False
        drop = self.drop1
        return kernels_serve(x, self.fc1, self.fc2) and not (has_hooks(drop) or drop.training and drop.p)

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden map: (B, H, W, dim) -> (B, H, W, hidden_dim)."""
        return self.drop1(F.gelu(self.fc1(x)))

    def project(self, hidden: Tensor) -> Tensor:
        """(B, H, W, hidden_dim) -> (B, H, W, dim)."""
        return self.drop2(self.fc2(hidden))


class DetailMLP(MLP):
    """Detail-specific feed-forward layer of the Shunted Transformer (section 3.1.2, equation 3): an :class:`MLP` with a
    depth-wise convolution before the activation. Arguments are the same."""

    halo = 1

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        super().__init__(dim, hidden_dim, drop)
        self.dwconv = LocalEnhancement(hidden_dim)

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden map: (B, H, W, dim) -> (B, H, W, hidden_dim)."""
        return self.drop1(self.dwconv(before_convolution(self.fc1, x), gelu=True))


class ConvMLP(DetailMLP):
    """Convolutional feed-forward layer (table 9, "Conv-Feedforward"): a :class:`DetailMLP` without the skip around the
    convolution, as in PVTv2. Arguments and tensors are the same."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        super().__init__(dim, hidden_dim, drop)
        self.dwconv = DepthwiseConv2d(hidden_dim)


class ConvGLU(MLP):
    """Gated feed-forward layer of TransNeXt (section 3.2, "Convolutional GLU"): one half of the hidden map passes a
    depth-wise convolution and GELU, and multiplies the other half. Each half has two thirds of ``hidden_dim`` channels,
    so the layer costs about as much as a :class:`ConvMLP`. Arguments are the same."""

    halo = 1

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        half = max(2 * hidden_dim // 3, 1)
        super().__init__(dim, half, drop)
        self.hidden_dim = 2 * half
        self.fc1 = nn.Linear(dim, 2 * half)
        self.dwconv = DepthwiseConv2d(half)

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden map: (B, H, W, dim) -> (B, H, W, hidden_dim / 2)."""
        if x.device.type == 'cpu':
            x, gate = halves_before_convolution(self.fc1, x)
            return self.drop1(gelu_gated(self.dwconv(x), gate))
        return self.drop1(self.dwconv(before_convolution(self.fc1, x), gelu=True, gated=True))


#: feed-forward layers: those of table 9, and 'glu' of TransNeXt.
#: The tensors of 'conv' and 'detail' have the same names and shapes.
FEED_FORWARD: dict[str, type[MLP]] = {'plain': MLP, 'conv': ConvMLP, 'detail': DetailMLP, 'glu': ConvGLU}
