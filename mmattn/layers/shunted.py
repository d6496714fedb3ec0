"""The two halves of a block of the Shunted Transformer (sections 3.1.1 and 3.1.2), on (B, H, W, C) tokens."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.tracing import is_tracing
from .any_size import repeat_to_multiple
from .mlp import MLP
from .token_conv import TokenConv2d


class TokenMerging(TokenConv2d):
    """r x r tokens to one, a convolution with kernel = stride = r.

    Where r does not divide the map, its last row and column are repeated to the right and bottom, so that every token
    is merged into some other. Repeated, not zero: a norm follows, which would stretch the little that zeros leave.

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


class ShuntedAttention(nn.Module):
    """Shunted self-attention (equations 1 and 2).

    The first half of the heads sees keys and values of tokens merged r x r, the second half of tokens merged
    r / 2 x r / 2. Either half pads its own merging, so the finer one is untouched wherever r / 2 divides the map.

    Args:
        dim: channels C.
        num_heads: attention heads; even, divides ``dim``.
        reduction: r, even.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.
    """

    def __init__(
        self, dim: int, num_heads: int, reduction: int, attn_drop_rate: float = 0.0, drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate

        self.q = nn.Linear(dim, dim)
        self.sr1, self.sr2 = TokenMerging(dim, dim, reduction), TokenMerging(dim, dim, reduction // 2)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.kv1, self.kv2 = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.local_conv1, self.local_conv2 = depthwise_conv(dim // 2), depthwise_conv(dim // 2)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        x = torch.cat(
            [
                attend(q, k, v, self.num_heads // 2, self.attn_drop_rate if self.training else 0.0)
                for q, (k, v) in zip(self.q(x).chunk(2, -1), self.keys_values(x))
            ],
            -1,
        )
        return self.drop(self.proj(x))

    def keys_values(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Equation 1. x: (B, H, W, C) -> key and value of either half, (B, ceil(H / r_i), ceil(W / r_i), C / 2)."""
        halves = (
            (self.sr1, self.norm1, self.kv1, self.local_conv1),
            (self.sr2, self.norm2, self.kv2, self.local_conv2),
        )
        pairs = []
        for merge, norm, project, enhance in halves:
            k, v = project(F.gelu(norm(merge(x)))).chunk(2, -1)
            pairs.append((k, add_conv(v, enhance)))
        return pairs


class EnhancedAttention(nn.Module):
    """What shunted attention is at r = 1 (stage 4): attention to all tokens, its output locally enhanced.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.
    """

    def __init__(self, dim: int, num_heads: int, attn_drop_rate: float = 0.0, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.local_conv = depthwise_conv(dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        k, v = self.kv(x).chunk(2, -1)
        x = attend(self.q(x), k, v, self.num_heads, self.attn_drop_rate if self.training else 0.0)
        return self.drop(self.proj(x + self.local_conv(v)))


class DetailMLP(MLP):
    """Detail-specific feed-forward layer (equation 3): a depth-wise convolution before the activation.

    Args:
        dim: channels in and out.
        hidden_dim: channels between.
        drop_rate: dropout of either linear layer.
    """

    def __init__(self, dim: int, hidden_dim: int, drop_rate: float = 0.0) -> None:
        super().__init__(dim, hidden_dim, drop_rate)
        self.dwconv = depthwise_conv(hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, H, W, dim)."""
        x = self.fc1(x)
        x = self.drop(self.act(add_conv(x, self.dwconv)))
        return self.drop(self.fc2(x))


def depthwise_conv(dim: int) -> TokenConv2d:
    """3 x 3, one filter a channel: the local enhancement LE of equation 1 and the detail layer DS of equation 3."""
    return TokenConv2d(dim, dim, 3, padding=1, groups=dim)


def add_conv(x: Tensor, conv: TokenConv2d) -> Tensor:
    """x + conv(x), ``conv`` of :func:`depthwise_conv`. x: (B, H, W, C) -> (B, H, W, C).

    In one pass over the map, the identity being 1 more in the middle of each filter. Not in half precision, where
    little would be left of the weight beside the 1.
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return x + conv(x)
    weight = conv.weight + F.pad(conv.weight.new_ones(1, 1, 1, 1), (1, 1, 1, 1))
    return F.conv2d(x.permute(0, 3, 1, 2), weight, conv.bias, padding=1, groups=conv.groups).permute(0, 2, 3, 1)


def attend(q: Tensor, k: Tensor, v: Tensor, num_heads: int, dropout: float = 0.0) -> Tensor:
    """Equation 2, without a score matrix in memory. q: (B, H, W, C), k and v: (B, h, w, C) -> (B, H, W, C)."""
    shape = q.shape
    q, k, v = [x.flatten(1, 2) for x in (q, k, v)]
    parts = _query_parts(q, num_heads)
    if parts > 1:
        q = q.unflatten(1, (parts, -1)).flatten(0, 1)
        k, v = (x.repeat_interleave(parts, 0) for x in (k, v))
    heads = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*heads, dropout_p=dropout)
    return out.transpose(1, 2).reshape(shape)


def _query_parts(q: Tensor, num_heads: int) -> int:
    """In how many parts, seen as pictures of their own, queries (B, N, C) keep all threads busy: on the CPU, the
    backward pass of torch's attention shares out pictures and heads only, and early stages have few heads."""
    if q.device.type != 'cpu' or not torch.is_grad_enabled() or is_tracing():
        return 1
    idle = torch.get_num_threads() // (len(q) * num_heads)
    return math.gcd(q.shape[1], 2 ** max(0, idle.bit_length() - 1))
