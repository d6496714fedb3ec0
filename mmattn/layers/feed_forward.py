"""Feed-forward layers of blocks, on (B, H, W, C) tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.tracing import is_exporting, is_plain
from .shunted import LocalEnhancement
from .token_conv import DepthwiseConv2d

#: numbers of a hidden map in memory at a time, for inference on the CPU: 4 MB of float32 fit the cache
MAX_HIDDEN = 2**20


class MLP(nn.Module):
    """Two linear layers with a GELU between them, as timm's ``Mlp``.

    Inference on the CPU computes large maps in parts of some rows. The hidden map of a whole one would not fit the
    cache, and the system would clear its memory again at every call.

    Args:
        dim: channels.
        hidden_dim: channels of the hidden map.
        drop: dropout after each layer.
    """

    #: rows above and below a part that its result depends on
    halo = 0

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim  # fc1 may become a layer that does not tell its size, as LoRA's
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop)
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, H, W, dim)."""
        B, H, W, _ = x.shape
        rows = B * H  # all in one part
        if x.device.type == 'cpu' and not torch.is_grad_enabled() and is_plain(x):
            rows = max(1, MAX_HIDDEN // (W * self.hidden_dim))
        if rows >= B * H:
            return self.project(self.hidden(x))
        out = torch.empty_like(x)
        samples = max(1, rows // H)
        for whole, written in zip(x.split(samples), out.split(samples)):
            for top in range(0, H, rows):
                first = max(0, top - self.halo)
                hidden = self.hidden(whole[:, first : top + rows + self.halo])
                written[:, top : top + rows] = self.project(hidden[:, top - first : top - first + rows])
        return out

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden map: (B, H, W, dim) -> (B, H, W, hidden_dim)."""
        return self.drop1(self.act(self.fc1(x)))

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
        if is_exporting():  # A convolution writes the hidden map as the next one reads it, channels first.
            weight = self.fc1.weight[:, :, None, None]
            hidden = F.conv2d(x.permute(0, 3, 1, 2), weight, self.fc1.bias).permute(0, 2, 3, 1)
        else:
            hidden = self.fc1(x)
        return self.drop1(self.act(self.dwconv(hidden)))


class ConvMLP(DetailMLP):
    """Convolutional feed-forward layer (table 9, "Conv-Feedforward"): a :class:`DetailMLP` without the skip around the
    convolution, as in PVTv2. Arguments and tensors are the same."""

    def __init__(self, dim: int, hidden_dim: int, drop: float = 0.0) -> None:
        super().__init__(dim, hidden_dim, drop)
        self.dwconv = DepthwiseConv2d(hidden_dim)


#: feed-forward layers of table 9. The tensors of 'conv' and 'detail' have the same names and shapes.
FEED_FORWARD: dict[str, type[MLP]] = {'plain': MLP, 'conv': ConvMLP, 'detail': DetailMLP}
