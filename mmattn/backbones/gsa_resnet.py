"""GSA-ResNet, a ResNet with global self-attention in place of its 3 x 3 convolutions.

"Global Self-Attention Networks for Image Recognition", https://arxiv.org/abs/2010.03019
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_flags, check_whole, stage_numbers
from ..layers import (
    Attention,
    DropPath,
    GlobalSelfAttention,
    batch_norm,
    build_token_mixer,
    token_mixer_settings,
    token_mixers_by_stage,
)
from ..layers.global_self_attention import DEFAULT_SIDE
from ..layers.token_mixer import mix
from ..ops.any_size import average_pool, ceil_div, half_convolution, max_pool
from ..ops.batch_norm import convolution_of_relu, norm_then_relu, normed
from ..ops.recompute import recompute
from . import gsa_resnet_weights
from .base import Backbone
from .stages import drop_path_schedule


def after_relu(norm: nn.Module, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``layer(relu(norm(x)))``, of which the backward pass keeps x alone. The layer is a module or has no weights.

    It computes norm and ReLU again, which takes little time, and no convolution, see :func:`recompute`.
    """
    if torch.is_grad_enabled() and (out := convolution_of_relu(norm, layer, x)) is not None:
        return out
    norm_relu = norm_then_relu(norm, x)
    # Another norm may exchange statistics between processes. nn.Identity, which MMCV's fuse_conv_bn sets, returns x
    # itself, which ReLU then changes.
    if not torch.is_grad_enabled() or type(norm) is not nn.BatchNorm2d:
        x = norm_relu(x)  # frees the map before, unless the caller has it, too
        return layer(x)
    return recompute(
        lambda x: layer(norm_relu(x)),
        x,
        modules=[m for m in (norm, layer) if isinstance(m, nn.Module)],
        random=False,
        compiled=False,
    )


class Bottleneck(nn.Module):
    """Residual block of ResNet v1. Its inner layer is a 3 x 3 convolution, attention, or the sum of both.

    Args:
        in_channels: channels in.
        width: channels of the inner layer.
        out_channels: channels out.
        stride: 1 or 2.
        attn: from (B, H, W, width) to (B, H, W, width); None means a convolution.
        keep_conv: with attention, whether there is a convolution, too. Attention is added to it, times ``attn_scale``,
            which starts at 0.
        norm_cfg: see :func:`mmattn.layers.batch_norm`.
        drop_path: probability of dropping the branch.
    """

    #: see :class:`mmattn.layers.Block`
    is_block = True

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        *,
        stride: int,
        attn: nn.Module | None,
        keep_conv: bool,
        norm_cfg: dict,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = batch_norm(width, norm_cfg)
        both = attn is not None and keep_conv
        bn2 = batch_norm(width, norm_cfg)
        if both:  # MMCV's fuse_conv_bn joins a norm with the convolution before it, but this norm follows a sum.
            self.bn2 = bn2
        if attn is None or both:
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.attn = attn
        self.attn_scale = nn.Parameter(torch.zeros(width)) if both else None
        self.bn2 = bn2
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
        identity = self.shortcut(x)
        x = after_relu(self.bn2, self.conv3, self.hidden(x))
        return norm_then_relu(self.bn3, x, identity, self.drop_path)(x)

    def token_mixers(self) -> list[nn.Module]:
        """Those of the block."""
        return [] if self.attn is None else [self.attn]

    def shortcut(self, x: Tensor) -> Tensor:
        """What the branch is added to: (B, in_channels, H, W) -> (B, out_channels, ceil(H / stride), ...)."""
        if self.downsample is None:
            return x
        conv, norm = self.downsample
        return normed(norm, half_convolution(conv, x) if self.stride > 1 else conv(x))

    def hidden(self, x: Tensor) -> Tensor:
        """The first convolution and the inner layer: (B, in_channels, H, W) -> (B, width, ceil(H / stride), ...)."""
        if self.attn is None:
            return after_relu(self.bn1, self.conv2, self.conv1(x))
        x = self.conv1(x)
        x = norm_then_relu(self.bn1, x)(x)
        return self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        """The inner layer with attention: (B, width, H, W) -> (B, width, ceil(H / stride), ceil(W / stride))."""
        mixed = self.mixed(x)
        return mixed if self.attn_scale is None else self.conv2(x) + self.attn_scale[:, None, None] * mixed

    def mixed(self, x: Tensor) -> Tensor:
        """Attention on a map (B, width, H, W), pooled: (B, width, ceil(H / stride), ceil(W / stride))."""
        return self.pooled(mix(self.attn, x.permute(0, 2, 3, 1)))

    def pooled(self, x: Tensor) -> Tensor:
        """The result of attention, as tokens, as a map (B, width, ceil(H / stride), ceil(W / stride))."""
        x = x.permute(0, 3, 1, 2)
        return average_pool(x) if self.stride > 1 else x


@MODELS.register_module()
class GSAResNet(Backbone):
    r"""GSA-ResNet (section 3.2): a ResNet v1 with global self-attention modules in place of its 3 x 3 convolutions.

    Groups are counted from 0, like stages: ``gsa_stages=(0, 1, 2, 3)`` is the paper's GSA-ResNet. The default keeps the
    convolutions of the first group, the best variant of table 5. With () it is a ResNet, the same as torchvision's.
    Where a group with attention halves the map, its first module works on the larger map, and 2 x 2 average pooling
    follows; an odd last row or column is pooled alone.

    Weights of a plain ResNet (torchvision's, timm's, MMDetection's) fill everything but the attention, which starts
    untrained, scaled to the norms of the ResNet. The classifier and the replaced convolutions are left out. The log
    names both, and says by how much the first pass differs from the ResNet's. A checkpoint with attention must fit
    completely.

    With ``keep_conv=True``, which is not in the paper, no convolution is replaced: attention is added to its result,
    times a factor per channel that starts at 0. So weights of a plain ResNet start the network exactly as that ResNet.
    The factor is per channel because one per block would be the same for all heads, and FSDP does not take scalars. The
    norm that follows attention in the paper follows the sum here. ResNet-50 has 25.6 M parameters and 4.09 G
    multiply-adds at 224 x 224, GSA-ResNet-50 18.1 M and 3.67 G, and with ``keep_conv=True`` 29.3 M and 5.17 G.

    One layout throughout: (B, C, H, W) maps in channels-last memory.

    Args:
        depth: 38, 50, 101, 'm50' (M-ResNet-50 of table 3), or a dict with ``depths``, ``stem_channels``,
            ``base_channels`` (of the inner layers in the first group, doubled in each further group) and ``expansion``
            (output channels of a block divided by those of its inner layer).
        gsa_stages: groups with attention, counted from 0.
        num_heads: attention heads.
        content: attend by content, in every module: True, False or 'axial'. See
            :class:`mmattn.layers.GlobalSelfAttention` for this and what follows, and table 4.
        column: attend along columns by relative position, in every module.
        row: attend along rows by relative position, in every module.
        img_size: longest side of an image, in pixels, for which every relative position has an embedding: L of a module
            is ``img_size`` divided by the stride of its map. A detector or segmentor needs the longest side of its
            training images. None: 224, and the log says it once when an image is larger.
        beyond: what to do with longer distances in larger images, 'mask' or 'stretch'. See
            :func:`mmattn.ops.axial_attention`. Tables of a checkpoint with another ``img_size`` are fitted likewise.
        axial_softmax: softmax of the products along columns and rows.
        softmax_queries: softmax of the queries of content attention.
        neighbourhood: odd side of the square of pixels of the map that positional attention is limited to, in every
            module; it replaces ``img_size`` and ``beyond``.
        keep_conv: keep the 3 x 3 convolutions in groups with attention, and add attention to them.
        attention: the token mixers of ``gsa_stages``, as of :class:`mmattn.backbones.SwinFrame`; None: global
            self-attention. A token mixer gets the arguments above that it has, too.
        zero_init_residual: the last norm of every block starts with weight 0, so that a block starts as its shortcut,
            as in MMDetection's ResNet. With False, an untrained model may give infinite maps in evaluation: attention
            is cubic in its input, and no norm has learned its size yet.
        norm_eval: see the base class. Do not use it with weights of a plain ResNet, unless ``keep_conv`` is set: the
            running statistics after attention are not those after the replaced convolutions.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`.

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
        # Input and output channels of all blocks, and so of the stem, are halved; then all channels times 1.125.
        'm50': dict(depths=(3, 4, 6, 3), stem_channels=36, base_channels=72, expansion=2),
    }
    arch_argument = 'depth'
    #: arguments that the plain ResNet of a start has, too
    shared_with_source = ('norm_cfg', 'in_channels', 'out_indices')
    weights = gsa_resnet_weights
    longer_positions = 'set img_size to the longest side of a training image'

    def __init__(
        self,
        depth: int | str | dict = 50,
        gsa_stages: Sequence[int] = (1, 2, 3),
        num_heads: int = 8,
        content: bool | str = True,
        column: bool = True,
        row: bool = True,
        img_size: int | None = None,
        beyond: str = 'mask',
        axial_softmax: bool = False,
        softmax_queries: bool = False,
        neighbourhood: int | None = None,
        keep_conv: bool = False,
        attention: Attention = None,
        zero_init_residual: bool = True,
        norm_cfg: dict = dict(type='BN'),
        norm_eval: bool = False,
        drop_path_rate: float = 0.0,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = dict(type='Kaiming', layer='Conv2d'),
    ) -> None:
        arch = self.resolve_arch(depth)
        depths, channels = arch['depths'], arch['stem_channels']
        gsa_stages = stage_numbers('gsa_stages', gsa_stages, len(depths))
        if img_size is not None:
            check_whole('img_size', img_size)
        check_flags(keep_conv=keep_conv)
        outs = [arch['base_channels'] * arch['expansion'] * 2**i for i in range(len(depths))]
        widths = self.inner_widths(arch)
        super().__init__(
            outs, out_indices, in_channels=in_channels, frozen_stages=frozen_stages, with_cp=with_cp, init_cfg=init_cfg
        )
        check_flags(norm_eval=norm_eval, zero_init_residual=zero_init_residual)
        self.norm_eval = norm_eval
        self.img_size = DEFAULT_SIDE if img_size is None else img_size
        self.beyond = beyond
        self.neighbourhood = neighbourhood
        self.arch, self.norm_cfg = arch, norm_cfg
        plain = dict(type=GlobalSelfAttention, project=False)
        token_mixers = token_mixers_by_stage(attention, depths, [plain] * len(depths))
        for i, given in enumerate(attention if isinstance(attention, (list, tuple)) else ()):
            if given is not None and i not in gsa_stages:
                raise ValueError(f'attention[{i}] is of a group without attention: add it to gsa_stages, or give None')

        def build(stage: int, block: int, dim: int, stride: int) -> nn.Module:
            in_turn = token_mixers[stage]
            return build_token_mixer(
                in_turn[block % len(in_turn)],
                dim=dim,
                num_heads=num_heads,
                stride=stride,
                block=block // len(in_turn),
                rel_pos_length=None if img_size is None else ceil_div(img_size, stride),
                content=content,
                column=column,
                row=row,
                axial_softmax=axial_softmax,
                softmax_queries=softmax_queries,
                neighbourhood=neighbourhood,
                beyond=beyond,
                norm_cfg=norm_cfg,
            )

        drop_path = drop_path_schedule(depths, drop_path_rate)
        self.conv1 = nn.Conv2d(in_channels, channels, 7, 2, 3, bias=False)
        self.bn1 = batch_norm(channels, norm_cfg)
        self.settings = dict(norm_eps=float(self.bn1.eps))
        for i in range(self.num_built):
            blocks = []
            for j, rate in enumerate(drop_path[i]):
                block = self.build_block(
                    i,
                    j,
                    partial(build, i, j),
                    i in gsa_stages,
                    stride=2 if i > 0 and j == 0 else 1,
                    in_channels=channels,
                    width=widths[i],
                    out_channels=outs[i],
                    keep_conv=keep_conv,
                    norm_cfg=norm_cfg,
                    drop_path=rate,
                )
                scale = block.bn3.weight  # init_cfg does not reach single norms
                if zero_init_residual and scale is not None and scale.requires_grad:
                    nn.init.zeros_(scale)
                blocks.append(block)
                channels = outs[i]
            built = [token_mixer for block in blocks for token_mixer in block.token_mixers()]
            if built:  # Without attention, a plain ResNet serves every kind.
                place = 'attention' if isinstance(attention, dict) else f'attention[{i}]'
                noted = (
                    built[0].settings
                    if token_mixers[i] == [plain]
                    else token_mixer_settings(token_mixers[i], built, place)
                )
                self.settings.update(noted, num_heads=int(num_heads))
            self.add_module(f'layer{i + 1}', nn.Sequential(*blocks))
        self.train()

    def inner_widths(self, arch: dict) -> list[int]:
        """Channels of the inner layers of each group."""
        return [arch['base_channels'] * 2**i for i in range(len(arch['depths']))]

    def build_block(
        self,
        stage: int,
        number: int,
        build: Callable[[int, int], nn.Module],
        attends: bool,
        stride: int,
        **arguments: object,
    ) -> Bottleneck:
        """A block of a group. ``build(dim, stride)`` makes its token mixer, for maps of this width and stride."""
        attn = build(arguments['width'], 4 * 2**stage // stride) if attends else None
        return Bottleneck(attn=attn, stride=stride, **arguments)

    def stage_modules(self) -> list[list[nn.Module]]:
        return [[self.conv1, self.bn1], *([getattr(self, f'layer{i + 1}')] for i in range(self.num_built))]

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check_images(x)
        x = x.contiguous(memory_format=torch.channels_last)
        x = after_relu(self.bn1, max_pool, self.conv1(x))
        for i in range(self.num_built):
            for block in getattr(self, f'layer{i + 1}'):
                x = self.run(block, x)
            yield x.permute(0, 2, 3, 1)
