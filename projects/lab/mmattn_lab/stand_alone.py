"""Stand-alone self-attention, which GSA is compared with (table 3)."""

import torch
from torch import Tensor, nn

from mmattn.arguments import check_heads, check_odd
from mmattn.layers.token_conv import TokenConv2d
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops import elsa_attention
from mmattn.ops.elsa import neighbourhood_products


@TOKEN_MIXERS.register_module()
class StandAloneAttention(nn.Module):
    r"""Attention to k x k neighbours by content and relative position ("Stand-Alone Self-Attention in Vision Models",
    https://arxiv.org/abs/1906.05909, equation 3), without an output projection:

    .. math::
        y_i = \sum_j \mathrm{softmax}_j(q_i^\top k_j + q_i^\top r_{j-i}) \, v_j

    The first half of r is learned for each row offset, the second for each column offset. Not in the paper: the heads
    share r, and outside of the map keys and values are zero.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        kernel_size: side k of the neighbourhood, odd.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, kernel_size: int = 7) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_odd('kernel_size', kernel_size)
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.settings = dict(kernel_size=int(kernel_size))
        self.qkv = TokenConv2d(dim, 3 * dim, 1, bias=False)
        width = dim // num_heads
        self.rel_row = nn.Parameter(nn.init.trunc_normal_(torch.empty(kernel_size, width // 2), std=width**-0.5))
        self.rel_col = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(kernel_size, width - width // 2), std=width**-0.5)
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(3)
        side = self.kernel_size
        r = torch.cat((self.rel_row.repeat_interleave(side, 0), self.rel_col.repeat(side, 1)), 1)  # (k * k, C / heads)
        logits = neighbourhood_products(q, k, side) + torch.einsum('byxhc,jc->byxhj', q, r)
        return elsa_attention(logits.to(v.dtype), v.flatten(-2))
