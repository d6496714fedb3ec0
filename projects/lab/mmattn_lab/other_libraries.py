"""Layers of timm and MMCV as token mixers: what GSA is compared with, and later attention in a ResNet's bottlenecks.

The libraries are imported when a layer is built: timm takes seconds, and MMCV may be missing.
"""

import importlib

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mmattn.arguments import check_choice, check_heads, check_odd, check_whole
from mmattn.layers.global_self_attention import table_length
from mmattn.layers.norm import batch_norm
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops.any_size import crop, pad_to_multiple
from mmattn.ops.global_self_attention import fit_table
from mmattn.packages import require, require_ops


@TOKEN_MIXERS.register_module()
class NonLocal(nn.Module):
    """Non-local block ("Non-local Neural Networks", https://arxiv.org/abs/1711.07971), MMCV's. It adds its input to its
    result, and starts as the identity.

    Args:
        dim: channels C.
        reduction: C divided by the channels of queries, keys and values, rounded down.
        mode: the pairwise function, 'embedded_gaussian' or 'dot_product'.
        norm_cfg: the batch norm after the last layer, see :func:`mmattn.layers.batch_norm`.

    Raises:
        MissingPackage: if MMCV is missing.
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self, dim: int, *, reduction: int = 2, mode: str = 'embedded_gaussian', norm_cfg: dict = dict(type='BN')
    ) -> None:
        super().__init__()
        check_whole('dim', dim)
        check_whole('reduction', reduction)
        check_choice('mode', mode, ('embedded_gaussian', 'dot_product'))
        batch_norm(1, norm_cfg)  # says what is wrong with it
        require('mmcv', 'token mixer NonLocal')
        layer = importlib.import_module('mmcv.cnn').NonLocal2d
        self.settings = dict(mode=mode)
        self.block = layer(dim, reduction=reduction, mode=mode, norm_cfg=norm_cfg)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return as_map(self.block, x)


@TOKEN_MIXERS.register_module()
class CrissCrossAttention(nn.Module):
    """Attention to the row and the column of a pixel, several times with the same weights ("CCNet",
    https://arxiv.org/abs/1811.11721), MMCV's, which MMSegmentation's CCHead has. It adds its input to its result, and
    starts as the identity. In half precision it needs autocast.

    Args:
        dim: channels C, at least 8.
        recurrence: how often; R of the paper.

    Raises:
        MissingPackage: if MMCV or its operators are missing.
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, *, recurrence: int = 2) -> None:
        super().__init__()
        check_whole('dim', dim, 8)
        check_whole('recurrence', recurrence)
        require('mmcv', 'token mixer CrissCrossAttention')
        require_ops('token mixer CrissCrossAttention')
        self.settings = dict(recurrence=int(recurrence))
        self.block = importlib.import_module('mmcv.ops').CrissCrossAttention(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        for _ in range(self.settings['recurrence']):
            x = as_map(self.block, x)
        return x


@TOKEN_MIXERS.register_module()
class HaloAttention(nn.Module):
    """Attention of blocks of pixels to the block and a margin around it ("Scaling Local Self-Attention for Parameter
    Efficient Visual Backbones", https://arxiv.org/abs/2103.12731), timm's. Maps are padded with zeros, which take part
    as keys, at the bottom and the right to whole blocks.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        block_size: side of a block, in pixels of the map.
        halo_size: width of the margin, in pixels of the map.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int = 8, *, block_size: int = 8, halo_size: int = 3) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('block_size', block_size)
        check_whole('halo_size', halo_size, 0)
        self.settings = dict(block_size=int(block_size), halo_size=int(halo_size))
        self.attn = importlib.import_module('timm.layers.halo_attn').HaloAttn(
            dim, num_heads=num_heads, block_size=block_size, halo_size=halo_size
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return crop(as_map(self.attn, pad_to_multiple(x, self.settings['block_size'], (1, 2))), *x.shape[1:3])


@TOKEN_MIXERS.register_module()
class LambdaLayer(nn.Module):
    """Lambda layer, with positions by a convolution ("LambdaNetworks", https://arxiv.org/abs/2102.08602), timm's.

    Args:
        dim: channels C.
        num_heads: heads of the queries; divides ``dim``.
        kernel_size: side of the convolution's filters, odd; r of the paper.
        key_width: channels of the keys; k of the paper.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int = 4, *, kernel_size: int = 23, key_width: int = 16) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_odd('kernel_size', kernel_size)
        check_whole('key_width', key_width)
        layer = importlib.import_module('timm.layers.lambda_layer').LambdaLayer
        self.attn = layer(dim, num_heads=num_heads, r=kernel_size, dim_head=key_width)
        theirs, half = self.attn.conv_lambda, kernel_size // 2
        self.attn.conv_lambda = FlatConv3d(1, key_width, theirs.kernel_size, padding=(half, half, 0))
        self.attn.conv_lambda.weight, self.attn.conv_lambda.bias = theirs.weight, theirs.bias

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return as_map(self.attn, x)


class FlatConv3d(nn.Conv3d):
    """A convolution of filters (k, k, 1), as one in two dimensions. In bfloat16 on the CPU, the backward pass of torch
    2.11 in three dimensions writes outside its memory."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W, D) -> (B, out_channels, H, W, D)."""
        maps = x.permute(0, 4, 1, 2, 3).flatten(0, 1)
        maps = F.conv2d(maps, self.weight[..., 0], self.bias, padding=self.padding[:2])
        return maps.unflatten(0, (-1, x.shape[4])).permute(0, 2, 3, 4, 1)


@TOKEN_MIXERS.register_module()
class BottleneckAttention(nn.Module):
    """Attention to all pixels by content and relative position ("Bottleneck Transformers for Visual Recognition",
    https://arxiv.org/abs/2101.11605), timm's. timm's is for maps of one size. Here its tables are cropped to smaller
    maps, and stretched to larger ones, see :func:`mmattn.ops.axial_attention`.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        stride: of the map, in pixels of the image.
        rel_pos_length: longest side of a map for which every relative position has an embedding. None: that of a 224 x
            224 image, 224 / ``stride``.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int = 4, *, stride: int = 4, rel_pos_length: int | None = None) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        length = table_length(stride, rel_pos_length)
        layer = importlib.import_module('timm.layers.bottleneck_attn').BottleneckAttn
        self.attn = layer(dim, feat_size=(length, length), num_heads=num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        positions = self.attn.pos_embed
        positions.height, positions.width = x.shape[1:3]  # what timm compares with the map
        tables = {
            'pos_embed.height_rel': fit_table(positions.height_rel, x.shape[1], 'stretch'),
            'pos_embed.width_rel': fit_table(positions.width_rel, x.shape[2], 'stretch'),
        }
        return as_map(lambda maps: functional_call(self.attn, tables, (maps,)), x)


def as_map(layer: object, x: Tensor) -> Tensor:
    """A layer of maps (B, C, H, W) over tokens (B, H, W, C)."""
    if len(x) == 0:  # The layers reshape with -1, which fails for an empty tensor.
        return x
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
