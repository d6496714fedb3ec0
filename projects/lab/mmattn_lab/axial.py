"""Axial attention, which GSA is compared with (table 3)."""

import torch
from torch import Tensor, nn

from mmattn.arguments import check_heads
from mmattn.layers.global_self_attention import table_length
from mmattn.layers.token_conv import TokenConv2d
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops import axial_attention
from mmattn.ops.any_size import ceil_div


@TOKEN_MIXERS.register_module()
class AxialAttention(nn.Module):
    r"""Attention along columns and then along rows, each with projections of its own ("Axial-DeepLab",
    https://arxiv.org/abs/2003.07853, the form without its position-sensitive terms, "Conv-Stem + Axial-Attention"):

    .. math::
        y_o = \sum_{p \in \mathrm{line}} \mathrm{softmax}_p(q_o^\top k_p + q_o^\top r_{p-o}) \, v_p

    Queries and keys have half as many channels as values. Not in the paper: the heads share r, there are no norms in
    the layer, and on maps longer than the tables these are stretched, see :func:`mmattn.ops.axial_attention`.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        stride: of the map, in pixels of the image.
        rel_pos_length: longest side of a map for which every relative position has an embedding. None: that of a 224 x
            224 image, 224 / ``stride``.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, stride: int = 4, rel_pos_length: int | None = None) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        length = table_length(stride, rel_pos_length)
        self.num_heads = num_heads
        self.width = ceil_div(dim // num_heads, 2)  # of a head's queries and keys
        self.qkv = nn.ModuleList(TokenConv2d(dim, 2 * num_heads * self.width + dim, 1, bias=False) for _ in range(2))
        shape, std = (2 * length - 1, self.width), self.width**-0.5
        self.rel_col = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std))
        self.rel_row = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        for dim, project, table in zip((1, 2), self.qkv, (self.rel_col, self.rel_row)):
            maps = project(x).unflatten(-1, (self.num_heads, -1))
            q, k, v = maps.split((self.width, self.width, x.shape[-1] // self.num_heads), -1)
            x = axial_attention(q, v, table, dim, 'stretch', key=k, softmax=True).flatten(-2)
        return x
