"""The two halves of a block of the Shunted Transformer (sections 3.1.1 and 3.1.2), on (B, H, W, C) tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import shunted_attention
from .any_size import repeat_to_multiple
from .mechanism import MECHANISMS
from .mlp import MLP
from .token_conv import TokenConv2d


class TokenMerging(TokenConv2d):
    """Merge r x r tokens into one: a convolution with kernel size r and stride r.

    If r does not divide the map, the last row and column are repeated at the bottom and the right, so that every token
    is merged. They are repeated and not zero, because a norm follows: it would scale up a token that is mostly zeros.

    Args:
        in_dim: channels in.
        out_dim: channels out.
        reduction: r.
    """

    def __init__(self, in_dim: int, out_dim: int, reduction: int) -> None:
        super().__init__(in_dim, out_dim, reduction, reduction)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_dim) -> (B, ceil(H / r), ceil(W / r), out_dim)."""
        return super().forward(repeat_to_multiple(x, self.stride[0], (1, 2)))


class LocalEnhancement(TokenConv2d):
    """x plus its 3 x 3 depth-wise convolution: LE of equation 1 and DS of equation 3.

    Args:
        dim: channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, H, W, dim)."""
        if x.dtype in (torch.float16, torch.bfloat16):  # A weight plus 1 would lose most of its digits.
            return x + super().forward(x)
        # One pass over the map: the identity adds 1 to the centre of each filter.
        weight = self.weight + F.pad(self.weight.new_ones(1, 1, 1, 1), (1, 1, 1, 1))
        x = F.conv2d(x.permute(0, 3, 1, 2), weight, self.bias, padding=1, groups=self.groups)
        return x.permute(0, 2, 3, 1)


@MECHANISMS.register_module()
class ShuntedAttention(nn.Module):
    """Shunted self-attention (equations 1 and 2).

    Keys and values of the first half of the heads come from tokens merged r x r, those of the second half from tokens
    merged r / 2 x r / 2. Each half pads the map for its own merging.

    Args:
        dim: channels C.
        num_heads: attention heads; even, divides ``dim``.
        reduction: r, even.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.shunted_attention`; None chooses the fastest.
    """

    def __init__(
        self, dim: int, num_heads: int, reduction: int, *, attn_drop_rate: float = 0.0, drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None

        self.q = nn.Linear(dim, dim)
        self.sr1, self.sr2 = TokenMerging(dim, dim, reduction), TokenMerging(dim, dim, reduction // 2)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.kv1, self.kv2 = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.local_conv1, self.local_conv2 = LocalEnhancement(dim // 2), LocalEnhancement(dim // 2)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        keys, values = zip(*self.keys_values(x))
        x = shunted_attention(
            self.q(x),
            keys,
            values,
            self.num_heads,
            dropout_p=self.attn_drop_rate if self.training else 0.0,
            backend=self.backend,
        )
        return self.drop(self.proj(x))

    def keys_values(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Equation 1. x: (B, H, W, C) -> key and value of each half, (B, ceil(H / r_i), ceil(W / r_i), C / 2)."""
        halves = (
            (self.sr1, self.norm1, self.kv1, self.local_conv1),
            (self.sr2, self.norm2, self.kv2, self.local_conv2),
        )
        pairs = []
        for merge, norm, project, enhance in halves:
            k, v = project(F.gelu(norm(merge(x)))).chunk(2, -1)
            pairs.append((k, enhance(v)))
        return pairs


@MECHANISMS.register_module()
class EnhancedAttention(nn.Module):
    """Shunted attention at r = 1 (stage 4): attention to all tokens, plus a depth-wise convolution of the values.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.shunted_attention`; None chooses the fastest.
    """

    def __init__(self, dim: int, num_heads: int, *, attn_drop_rate: float = 0.0, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None

        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.local_conv = TokenConv2d(dim, dim, 3, padding=1, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        k, v = self.kv(x).chunk(2, -1)
        x = shunted_attention(
            self.q(x),
            [k],
            [v],
            self.num_heads,
            dropout_p=self.attn_drop_rate if self.training else 0.0,
            backend=self.backend,
        )
        return self.drop(self.proj(x + self.local_conv(v)))


class DetailMLP(MLP):
    """Detail-specific feed-forward layer (equation 3): an MLP with a depth-wise convolution before the activation.

    Args:
        dim: channels in and out.
        hidden_dim: channels between the two linear layers.
        drop_rate: dropout after each linear layer.
    """

    def __init__(self, dim: int, hidden_dim: int, drop_rate: float = 0.0) -> None:
        super().__init__(dim, hidden_dim, drop_rate)
        self.dwconv = LocalEnhancement(hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, H, W, dim)."""
        x = self.drop(self.act(self.dwconv(self.fc1(x))))
        return self.drop(self.fc2(x))


class ConvMLP(DetailMLP):
    """Convolutional feed-forward layer (table 9, "Conv-Feedforward"): a :class:`DetailMLP` without the skip around the
    convolution, as in PVTv2. Arguments and tensors are the same."""

    def __init__(self, dim: int, hidden_dim: int, drop_rate: float = 0.0) -> None:
        super().__init__(dim, hidden_dim, drop_rate)
        self.dwconv = TokenConv2d(hidden_dim, hidden_dim, 3, padding=1, groups=hidden_dim)


#: feed-forward layers of table 9. The tensors of 'conv' and 'detail' have the same names and shapes.
FEED_FORWARD: dict[str, type[MLP]] = {'plain': MLP, 'conv': ConvMLP, 'detail': DetailMLP}
