"""GSA-ResNet, a ResNet with global self-attention in place of its 3 x 3 convolutions.

"Global Self-Attention Networks for Image Recognition", https://arxiv.org/abs/2010.03019
"""

import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import DropPath, GlobalSelfAttention, batch_norm
from ..layers.any_size import ceil_div, pad_to_multiple, repeat_to_multiple
from ..ops.global_self_attention import fit_table
from ..ops.tracing import is_tracing
from .base import Backbone, drop_path_schedule


@MODELS.register_module()
class GSAResNet(Backbone):
    r"""GSA-ResNet (section 3.2): a ResNet v1 whose 3 x 3 convolutions are global self-attention modules.

    Groups are counted from 0, as stages everywhere: ``gsa_stages=(0, 1, 2, 3)`` is the paper's GSA-ResNet. The default
    leaves the convolutions in the first group, the best variant of table 5; with () it is a ResNet, the same as
    torchvision's. Where a group with attention halves the map, its first module works on the larger one and a 2 x 2
    average pool follows; an odd last row or column is pooled alone.

    Weights of a ResNet (torchvision's, timm's, MMDetection's) are taken as they are: all but the classifier and the
    replaced convolutions is filled, and attention starts as initialised; the log names both. A checkpoint with
    attention fills a model to the last tensor.

    One layout throughout: (B, C, H, W) maps in channels-last memory.

    Args:
        depth: 38, 50, 101, 'm50' (M-ResNet-50 of table 3), or a dict with ``depths``, ``stem_channels``,
            ``base_channels`` (of the first group's inner layers, doubled in each further one) and ``expansion`` (of a
            block's output).
        gsa_stages: groups with attention, counting from 0.
        num_heads: attention heads.
        content: attend by content, in every module. See :class:`mmattn.layers.GlobalSelfAttention` and table 4.
        column: attend along columns by relative position, in every module.
        row: attend along rows by relative position, in every module.
        img_size: longest side of the pictures for which every relative position has an embedding of its own, in
            pixels: L of a module is ``img_size`` divided by the stride of its map.
        beyond: what becomes of the positions beyond in larger pictures, 'stretch' or 'mask'. See
            :func:`mmattn.ops.axial_attention`. Tables of a checkpoint with another ``img_size`` are fitted likewise.
        norm_cfg: batch norm, ``dict(type='BN')`` or ``dict(type='SyncBN')``, see :func:`mmattn.layers.batch_norm`.
        norm_eval: batch norm always uses, and never updates, its running statistics. Over weights of a ResNet that is
            right of no group with attention: its norms have not seen what attention returns.
        drop_path_rate: stochastic depth of the last block; rises linearly from 0.
        in_channels: channels of the picture.
        out_indices, frozen_stages, with_cp, init_cfg: see :class:`mmattn.backbones.base.Backbone`. Stages past the
            last output are not built.

    Raises:
        ValueError: for an argument that cannot be, naming it.

    Example:
        >>> import torch
        >>> from mmattn.backbones import GSAResNet
        >>> maps = GSAResNet(depth=50).eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 256, 17, 25), (1, 512, 9, 13), (1, 1024, 5, 7), (1, 2048, 3, 4)]
    """

    arch_zoo = {
        38: dict(depths=(2, 3, 5, 2), stem_channels=64, base_channels=64, expansion=4),
        50: dict(depths=(3, 4, 6, 3), stem_channels=64, base_channels=64, expansion=4),
        101: dict(depths=(3, 4, 23, 3), stem_channels=64, base_channels=64, expansion=4),
        # Input and output channels of all blocks halved, so those of the stem, too; then all times 1.125.
        'm50': dict(depths=(3, 4, 6, 3), stem_channels=36, base_channels=72, expansion=2),
    }
    arch_argument = 'depth'
    release_only = re.compile(r'fc\.')
    backbone_only = re.compile(r'layer\d\.\d+\.attn\.')
    resizable = re.compile(r'.*\.rel_(col|row)$')

    def __init__(
        self,
        depth: int | str | dict = 50,
        gsa_stages: Sequence[int] = (1, 2, 3),
        num_heads: int = 8,
        content: bool = True,
        column: bool = True,
        row: bool = True,
        img_size: int = 224,
        beyond: str = 'stretch',
        norm_cfg: dict = dict(type='BN'),
        norm_eval: bool = False,
        drop_path_rate: float = 0.0,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = [
            dict(type='Kaiming', layer='Conv2d'),
            dict(type='Constant', layer='_BatchNorm', val=1.0),
        ],
    ) -> None:
        arch = self.resolve_arch(depth)
        depths, channels = arch['depths'], arch['stem_channels']
        _check(arch, gsa_stages, img_size)
        super().__init__(out_indices, len(depths), frozen_stages, with_cp, init_cfg)
        self.norm_eval = norm_eval
        self.beyond = beyond

        drop_path = drop_path_schedule(depths, drop_path_rate)
        self.num_built = self.out_indices[-1] + 1
        self.conv1 = nn.Conv2d(in_channels, channels, 7, 2, 3, bias=False)
        self.bn1 = batch_norm(channels, norm_cfg)
        for i in range(self.num_built):
            width = arch['base_channels'] * 2**i
            blocks = []
            for j, rate in enumerate(drop_path[i]):
                stride = 2 if i > 0 and j == 0 else 1
                attn = None
                if i in gsa_stages:
                    length = -(-img_size // (4 * 2**i // stride))
                    attn = GlobalSelfAttention(width, num_heads, length, content, column, row, beyond, norm_cfg)
                blocks.append(Bottleneck(channels, width, width * arch['expansion'], stride, attn, norm_cfg, rate))
                channels = width * arch['expansion']
            self.add_module(f'layer{i + 1}', nn.Sequential(*blocks))

        # Of a ResNet, the replaced convolutions, and of any checkpoint the stages that are not built.
        absent = [rf'layer{i + 1}\.\d+\.conv2\.' for i in gsa_stages]
        absent += [rf'layer{i + 1}\.' for i in range(self.num_built, len(depths))]
        self.release_only = re.compile('|'.join([type(self).release_only.pattern, *absent]))
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        return [[self.conv1, self.bn1], *([getattr(self, f'layer{i + 1}')] for i in range(self.num_built))]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output i, (B, C_i, ceil(H / s_i), ceil(W / s_i)), s_i = 4, 8, 16, 32."""
        outs = []
        x = x.contiguous(memory_format=torch.channels_last)
        x = _max_pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        for i in range(self.num_built):
            for block in getattr(self, f'layer{i + 1}'):
                x = self.run(block, x)
            if i in self.out_indices:
                outs.append(x.contiguous())  # see to_map
        return tuple(outs)

    def resize_table(self, table: Tensor, shape: torch.Size) -> Tensor:
        if table.dim() != 2 or len(table) % 2 == 0 or table.shape[1:] != shape[1:]:
            return table
        return fit_table(table.float(), shape[0] // 2 + 1, self.beyond).to(table.dtype)


def _max_pool(x: Tensor) -> Tensor:
    """The max pooling of a ResNet's stem, of values from 0 up. (B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2))."""
    if not is_tracing():
        return F.max_pool2d(x, 3, 2, 1)
    # The same, but of a size that torch, which asks for remainders while tracing, knows to be odd.
    return F.max_pool2d(F.pad(pad_to_multiple(x, 2, (2, 3)), (1, 0, 1, 0)), 3, 2)


class Bottleneck(nn.Module):
    """Residual block of ResNet v1, its inner layer a 3 x 3 convolution or attention.

    Args:
        in_channels: channels in.
        width: channels of the inner layer.
        out_channels: channels out.
        stride: 1 or 2.
        attn: from (B, width, H, W) to (B, width, H, W); None for the convolution.
        norm_cfg: see :func:`mmattn.layers.batch_norm`.
        drop_path: probability of dropping the branch.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        stride: int,
        attn: nn.Module | None,
        norm_cfg: dict,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = batch_norm(width, norm_cfg)
        if attn is None:
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.attn = attn
        self.bn2 = batch_norm(width, norm_cfg)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = batch_norm(out_channels, norm_cfg)
        self.downsample = (
            nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, bias=False), batch_norm(out_channels, norm_cfg))
            if stride > 1 or in_channels != out_channels
            else None
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, out_channels, ceil(H / stride), ceil(W / stride))."""
        identity = _drop_every_second(x) if self.stride > 1 else x
        if self.downsample is not None:
            identity = self.downsample(identity)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.attn is None:
            x = self.conv2(x)
        else:
            x = self.attn(x)
            if self.stride > 1:
                x = _average_pool(x)
        x = F.relu(self.bn2(x), inplace=True)
        return F.relu(identity + self.drop_path(self.bn3(self.conv3(x))), inplace=True)


def _drop_every_second(x: Tensor) -> Tensor:
    """Every second row and column, from the first. (B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2)).

    What a convolution's stride would do, but torch 2.11's backward pass of 1 x 1 convolutions with a stride, over
    channels-last maps of few channels on the CPU, writes where it should not.
    """
    if is_tracing():  # see crop
        rows, columns = (2 * torch.arange(ceil_div(size, 2), device=x.device) for size in x.shape[2:])
        return x[:, :, rows[:, None], columns]
    return x[..., ::2, ::2]


def _average_pool(x: Tensor) -> Tensor:
    """2 x 2 average pooling, an odd last row or column alone. (B, C, H, W) -> (B, C, ceil(H / 2), ceil(W / 2)).

    Unlike torch's, it does not keep the map for the backward pass.
    """
    x = repeat_to_multiple(x, 2, (2, 3))
    for dim in (2, 3):
        first, second = x.unflatten(dim, (-1, 2)).unbind(dim + 1)
        x = first + second
    return x / 4


def _check(arch: dict, gsa_stages: Sequence[int], img_size: int) -> None:
    depths = arch['depths']
    if min(depths, default=0) < 1:
        raise ValueError(f'depth: depths must be at least 1, not {depths}')
    for key in ('stem_channels', 'base_channels', 'expansion'):
        if arch[key] < 1:
            raise ValueError(f'depth: {key} must be at least 1, not {arch[key]}')
    if not set(gsa_stages) <= set(range(len(depths))):
        raise ValueError(f'gsa_stages must be stage numbers from 0 to {len(depths) - 1}, not {tuple(gsa_stages)}')
    if img_size < 1:
        raise ValueError(f'img_size must be at least 1, not {img_size}')
