"""Attention augmented convolution, which GSA is compared with (table 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.arguments import check_finite, check_heads, check_odd, check_whole
from mmattn.layers.global_self_attention import table_length
from mmattn.layers.token_conv import TokenConv2d
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops.any_size import ceil_div
from mmattn.ops.global_self_attention import fit_table


@TOKEN_MIXERS.register_module()
class AttentionAugmentedConv(nn.Module):
    r"""A convolution to some channels, attention to all pixels for the others ("Attention Augmented Convolutional
    Networks", https://arxiv.org/abs/1904.09925, equations 1 to 4):

    .. math::
        \mathrm{AAConv}(x) = [\mathrm{Conv}(x), \mathrm{MHA}(x) W^O], \qquad
        \mathrm{logits}_{ij} = q_i^\top (k_j + r^W_{j_x - i_x} + r^H_{j_y - i_y}) / \sqrt{d_k}

    With ``coarse_stride``, attention works on maps of half the size if their stride is smaller: its input is averaged
    over 3 x 3 pixels with stride 2, and its result is interpolated.

    The heads share the two tables r. Not in the paper: on maps longer than the tables these are stretched, see
    :func:`mmattn.ops.axial_attention`.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        kernel_size: side of the convolution's filters, odd.
        key_ratio: channels of the keys divided by C, rounded for each head; kappa of the paper.
        value_ratio: channels of the values, and so of the result of attention, divided by C, rounded likewise, at least
            one for each head; upsilon of the paper.
        min_key_width: the fewest channels of a head's keys.
        coarse_stride: attention works on maps of half the size if their stride is smaller than this, in pixels of the
            image.
        stride: of the map, in pixels of the image.
        rel_pos_length: longest side of a map for which every relative position has an embedding. None: that of a 224 x
            224 image, 224 / ``stride``.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        kernel_size: int = 3,
        key_ratio: float = 0.2,
        value_ratio: float = 0.1,
        min_key_width: int = 20,
        coarse_stride: int = 1,
        stride: int = 4,
        rel_pos_length: int | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_odd('kernel_size', kernel_size)
        check_finite('key_ratio', key_ratio, 0, 1)
        check_finite('value_ratio', value_ratio, 0, 1)
        check_whole('min_key_width', min_key_width)
        check_whole('coarse_stride', coarse_stride)
        length = table_length(stride, rel_pos_length)
        self.settings = dict(coarse_stride=int(coarse_stride))
        self.halves = stride < coarse_stride
        length = ceil_div(length, 2) if self.halves else length
        self.num_heads = num_heads
        self.key_width = max(min_key_width, round(key_ratio * dim / num_heads))
        self.value_width = max(1, round(value_ratio * dim / num_heads))
        values = num_heads * self.value_width
        if values >= dim:
            raise ValueError(
                f'value_ratio {value_ratio} with num_heads {num_heads} leaves none of {dim} channels to the convolution'
            )
        self.conv = TokenConv2d(dim, dim - values, kernel_size, padding=kernel_size // 2, bias=False)
        self.qkv = TokenConv2d(dim, num_heads * (2 * self.key_width + self.value_width), 1, bias=False)
        self.proj = TokenConv2d(values, values, 1, bias=False)
        shape, std = (2 * length - 1, self.key_width), self.key_width**-0.5
        self.rel_row = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std))
        self.rel_col = nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        small = x
        if self.halves:
            small = F.avg_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1, count_include_pad=False).permute(0, 2, 3, 1)
        mixed = self.proj(self.attend(small)).permute(0, 3, 1, 2)
        if self.halves:
            mixed = F.interpolate(mixed, x.shape[1:3], mode='bilinear')
        return torch.cat((self.conv(x), mixed.permute(0, 2, 3, 1)), -1)

    def attend(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, channels of the values)."""
        H, W = x.shape[1:3]
        maps = self.qkv(x).unflatten(-1, (self.num_heads, -1))
        q, k, v = maps.split((self.key_width, self.key_width, self.value_width), -1)
        q = q * self.key_width**-0.5
        down = torch.einsum('byxhc,yjc->bhyxj', q, relative(self.rel_col, H))
        across = torch.einsum('byxhc,xic->bhyxi', q, relative(self.rel_row, W))
        bias = (down[..., None] + across[..., None, :]).flatten(4).flatten(2, 3)  # (B, heads, H * W, H * W)
        q, k, v = (part.flatten(1, 2).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), scale=1.0)
        return mixed.transpose(1, 2).flatten(2).unflatten(1, (H, W))


def relative(table: Tensor, length: int) -> Tensor:
    """Rows of a table (2L - 1, c) for every pair of pixels of a line: (length, length, c), the query first."""
    index = torch.arange(length, device=table.device)
    return F.embedding(index - index[:, None] + length - 1, fit_table(table, length, 'stretch'))
