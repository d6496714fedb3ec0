"""Blocks at a cost linear in the pixels that GSA is compared with (table 3). Each adds its input to its result."""

import math

import torch
from torch import Tensor, nn

from mmattn.arguments import check_heads, check_whole
from mmattn.layers.token_conv import TokenConv2d
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops import content_attention


@TOKEN_MIXERS.register_module()
class EfficientAttention(nn.Module):
    r"""Efficient attention ("Efficient Attention: Attention with Linear Complexities",
    https://arxiv.org/abs/1812.01243): :math:`x + W \rho_q(Q) (\rho_k(K)^\top V)`, with a softmax
    :math:`\rho_q` over the channels of a head and :math:`\rho_k` over the pixels.

    With one head it is the double attention of "A^2-Nets" (https://arxiv.org/abs/1810.11579): V, K and Q are
    its feature maps A, attention maps B and attention vectors V.

    Args:
        dim: channels C.
        num_heads: attention heads; divides the channels of queries, keys and values.
        reduction: C divided by these channels, a divisor of C.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, reduction: int = 2) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_heads(dim, reduction, 'reduction')
        width = dim // reduction
        if width % num_heads:
            raise ValueError(f'num_heads {num_heads} does not divide the {width} channels after reduction {reduction}')
        self.num_heads = num_heads
        self.settings = dict(num_heads=int(num_heads))
        self.qkv = TokenConv2d(dim, 3 * width, 1)
        self.proj = TokenConv2d(width, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(3)
        return x + self.proj(content_attention(q.softmax(-1).to(q.dtype), k, v).flatten(-2))


@TOKEN_MIXERS.register_module()
class CompactNonLocal(nn.Module):
    r"""Compact generalised non-local block with the dot product ("Compact Generalized Non-local Network",
    https://arxiv.org/abs/1810.13125). In each group of channels,

    .. math::
        \mathrm{vec}(Y) = \mathrm{vec}(\Theta) \, \mathrm{vec}(\Phi)^\top \mathrm{vec}(G),

    where vec joins pixels and channels, so that every number of a map interacts with all others. A linear layer for
    each group and group norm follow. As in the release, the scale of the norm starts at 0.

    Args:
        dim: channels C.
        reduction: C divided by the channels of Theta, Phi and G, rounded down.
        groups: of these channels, and of the norm. If it does not divide both, their greatest common divisor.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, *, reduction: int = 2, groups: int = 8) -> None:
        super().__init__()
        check_whole('dim', dim)
        check_whole('reduction', reduction)
        check_whole('groups', groups)
        width = max(dim // reduction, 1)
        self.groups = math.gcd(dim, width, groups)
        self.maps = TokenConv2d(dim, 3 * width, 1, bias=False)
        self.proj = nn.Conv2d(width, dim, 1, groups=self.groups, bias=False)
        self.norm = nn.GroupNorm(self.groups, dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        theta, phi, g = self.maps(x).unflatten(-1, (3, self.groups, -1)).unbind(3)
        scores = torch.einsum('byxgc,byxgc->bg', phi, g)[:, None, None, :, None]
        y = (theta * scores).flatten(-2).permute(0, 3, 1, 2)
        return x + self.norm(self.proj(y)).permute(0, 2, 3, 1)
