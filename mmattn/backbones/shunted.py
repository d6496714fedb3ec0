"""The Shunted Transformer.

"Shunted Self-Attention via Multi-Scale Token Aggregation", https://arxiv.org/abs/2111.15193
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_choice, check_flags, check_heads, check_rates, check_whole, hidden_channels
from ..layers import (
    FEED_FORWARD,
    Attention,
    EnhancedAttention,
    ShuntedAttention,
    TokenConv2d,
    TokenMerging,
    token_mixers_by_stage,
)
from ..layers.shunted import group_rates
from . import shunted_weights
from .base import Backbone
from .patch_embed import stem_convolutions
from .stages import drop_path_schedule, stage_blocks


class Stem(nn.Module):
    """Patch embedding (section 3.2): a 7 x 7 convolution of stride 2, 3 x 3 convolutions, a merging of 2 x 2 tokens.

    ``num_convs`` None: a merging of 4 x 4 pixels alone (table 7).
    """

    def __init__(self, in_channels: int, dim: int, num_convs: int | None, norm_cfg: dict) -> None:
        super().__init__()
        if num_convs is None:
            layers: list[nn.Module] = [TokenMerging(in_channels, dim, 4)]
        else:
            layers = [*stem_convolutions(in_channels, dim, num_convs, norm_cfg), TokenMerging(dim, dim, 2)]
        self.conv = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_channels) -> (B, ceil(H / 4), ceil(W / 4), dim)."""
        # Only here, maps are not channels-last: in torch 2.11 on the CPU, the gradient of the weights of 3 x 3
        # convolutions takes four times as long with channels-last maps.
        x = x.permute(0, 3, 1, 2)
        *layers, merge = self.conv
        for layer in layers:
            x = layer(x)
        return self.norm(merge(x.permute(0, 2, 3, 1)))


@MODELS.register_module()
class ShuntedTransformer(Backbone):
    r"""Shunted Transformer (figure 5 and table 1): four stages of shunted self-attention.

    Two things are as in the released code, and not as in the paper. The first half of the heads sees tokens merged
    r x r, the second half r / 2 x r / 2; table 1 has them in the other order. Where r is 1, the depth-wise convolution
    of the values (LE) is added to the result of attention; equation 1 adds it to the values.

    One layout throughout: (B, H, W, C) tokens.

    At sides that are multiples of 32, all mergings of tokens come out even, and the maps are those of the released
    models. The release was not made for other sizes. There, the last row and column of the map are repeated at the
    bottom and the right before tokens are merged: in the 2 x 2 convolution of the stem and, each with its own ratio, in
    the two halves of the heads. So every pixel reaches tokens, keys and values, and sides of maps are
    ceil(side / stride). See :class:`mmattn.layers.TokenMerging`.

    Args:
        arch: 'tiny', 'small', 'base', 'large', or a dict with ``embed_dims``, ``depths``, ``num_heads`` and
            ``stem_convs``. Weights of Large were never released.
        reductions: r of each stage: half of the heads sees tokens merged r x r, half r / 2 x r / 2. Even; 1 means plain
            attention. A list instead of a number has one rate for each of any number of groups of heads.
        mlp_ratios: per stage, hidden channels of the feed-forward layers divided by the channels of the stage.
        stem: 'overlap'; 'patches' (table 7, "Non-Overlap"): 4 x 4 patches, a linear layer and a norm; or 'convolution',
            PVTv2's: a 7 x 7 convolution of stride 4 and a norm.
        stem_convs: of 'overlap', 3 x 3 convolutions between the first and the last; by default those of the arch. 0 is
            table 7's "Overlap".
        aggregation: 'shunted', 'convolution' or 'linear' (table 8), see :class:`mmattn.layers.ShuntedAttention`. Where
            r is 1, no tokens are merged, and the values are enhanced in any case; the paper does not say.
        feed_forward: 'detail', 'conv' or 'plain' (table 9), or 'glu' of TransNeXt, see ``mmattn.layers.FEED_FORWARD``.
        attention: config of a token mixer in the place of shunted attention, see
            :func:`mmattn.layers.build_token_mixer`; or a list of one per stage, None where it is shunted attention.
        drop_rate: dropout of attention output and MLP.
        attn_drop_rate: dropout of attention weights.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`. Convolutions start as in the release,
    whatever ``init_cfg`` says of other layers.

    With ``attention=dict(type='SpatialReductionAttention')``, ``stem='convolution'`` and the sizes of a PVTv2 or of
    SegFormer's MiT, the backbone takes their weights, as their authors, timm, MMDetection or MMSegmentation have them,
    and returns the same maps, with ``feed_forward='conv'`` as with 'detail'.

    With ``stem='convolution'``, the sizes of a PVTv2 and shunted attention,
    ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts from it. The number of heads of a stage
    must be a multiple of PVTv2's, which is 1, 2, 5, 8; where it is larger, and where heads see tokens merged at a
    smaller rate than PVTv2's, the maps differ. The log says by how much. See
    :func:`mmattn.layers.starts.shunted_from_pvt`. With TransNeXt's or RALA's attention in some stages, it also starts
    from a Shunted Transformer.

    Example:
        >>> import torch
        >>> from mmattn.backbones import ShuntedTransformer
        >>> maps = ShuntedTransformer(arch='tiny').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 64, 17, 25), (1, 128, 9, 13), (1, 256, 5, 7), (1, 512, 3, 4)]
    """

    arch_zoo = {
        'tiny': dict(embed_dims=(64, 128, 256, 512), depths=(1, 2, 4, 1), num_heads=(2, 4, 8, 16), stem_convs=0),
        'small': dict(embed_dims=(64, 128, 256, 512), depths=(2, 4, 12, 1), num_heads=(2, 4, 8, 16), stem_convs=1),
        'base': dict(embed_dims=(64, 128, 256, 512), depths=(3, 4, 24, 2), num_heads=(2, 4, 8, 16), stem_convs=2),
        'large': dict(embed_dims=(64, 128, 320, 768), depths=(4, 8, 32, 2), num_heads=(2, 4, 10, 24), stem_convs=2),
    }
    weights = shunted_weights

    def __init__(
        self,
        arch: str | dict = 'tiny',
        reductions: Sequence[int | Sequence[int]] = (8, 4, 2, 1),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        stem: str = 'overlap',
        stem_convs: int | None = None,
        aggregation: str = 'shunted',
        feed_forward: str = 'detail',
        attention: Attention = None,
        norm_cfg: dict = dict(type='BN'),
        norm_eval: bool = False,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = dict(type='TruncNormal', layer='Linear', std=0.02),
    ) -> None:
        arch = self.resolve_arch(arch)
        dims, depths, num_heads = arch['embed_dims'], arch['depths'], arch['num_heads']
        per_stage = dict(
            embed_dims=dims, depths=depths, num_heads=num_heads, reductions=reductions, mlp_ratios=mlp_ratios
        )
        if len({len(values) if isinstance(values, Sequence) else None for values in per_stage.values()}) > 1:
            raise ValueError(
                'arch: embed_dims, depths, num_heads and the arguments reductions, mlp_ratios must be '
                f'of one length, not {per_stage}'
            )
        for dim, heads in zip(dims, num_heads):
            check_heads(dim, heads, 'arch: num_heads')
        plain = [dict(type=EnhancedAttention if reduction == 1 else ShuntedAttention) for reduction in reductions]
        token_mixers = token_mixers_by_stage(attention, depths, plain)
        for reduction, heads, own, in_turn in zip(reductions, num_heads, plain, token_mixers):
            if own in in_turn:  # Other token mixers check their own arguments.
                group_rates(reduction, heads, 'reductions')
        check_choice('stem', stem, ('overlap', 'patches', 'convolution'))
        check_choice('feed_forward', feed_forward, FEED_FORWARD)
        stem_convs = arch['stem_convs'] if stem_convs is None else stem_convs
        check_whole('stem_convs', stem_convs, 0)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        super().__init__(
            dims, out_indices, in_channels=in_channels, frozen_stages=frozen_stages, with_cp=with_cp, init_cfg=init_cfg
        )
        check_flags(norm_eval=norm_eval)
        self.norm_eval = norm_eval
        self.arch, self.mlp_ratios, self.stem, self.stem_convs = arch, tuple(mlp_ratios), stem, stem_convs

        drop_path = drop_path_schedule(depths, drop_path_rate)
        self.settings = dict(num_heads=[int(heads) for heads in num_heads], feed_forward=feed_forward)
        for i in range(self.num_built):
            if i == 0 and stem != 'convolution':
                patch_embed: nn.Module = Stem(in_channels, dims[0], stem_convs if stem == 'overlap' else None, norm_cfg)
            else:
                # the step between two stages (section 3.3)
                conv = TokenConv2d(dims[i - 1], dims[i], 3, 2, 1) if i else TokenConv2d(in_channels, dims[0], 7, 4, 3)
                patch_embed = nn.Sequential(OrderedDict(proj=conv, norm=nn.LayerNorm(dims[i])))
            hidden = hidden_channels(dims[i], mlp_ratios[i], f'mlp_ratios[{i}]')
            blocks = stage_blocks(
                self,
                i,
                token_mixers[i],
                drop_path[i],
                partial(FEED_FORWARD[feed_forward], dims[i], hidden, drop=drop_rate),
                eps=1e-6,
                num_heads=num_heads[i],
                stride=4 * 2**i,
                reduction=reductions[i],
                aggregation=aggregation,
                norm_cfg=norm_cfg,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            self.add_module(f'patch_embed{i + 1}', patch_embed)
            self.add_module(f'block{i + 1}', nn.ModuleList(blocks))
            self.add_module(f'norm{i + 1}', nn.LayerNorm(dims[i], 1e-6))
        _init_convolutions(self)
        if stem == 'overlap':
            self.settings['norm_eps'] = float(self.patch_embed1.conv[1].eps)
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        stem, *stages = (
            [getattr(self, f'{name}{i + 1}') for name in ('patch_embed', 'block', 'norm')]
            for i in range(self.num_built)
        )
        return [stem[:1], stem[1:], *stages]

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check_images(x)
        x = x.permute(0, 2, 3, 1)
        for i in range(self.num_built):
            x = getattr(self, f'patch_embed{i + 1}')(x)
            for block in getattr(self, f'block{i + 1}'):
                x = self.run(block, x)
            x = getattr(self, f'norm{i + 1}')(x)  # part of the stage: the next one gets the normed map
            yield x


def _init_convolutions(model: nn.Module) -> None:
    """He initialisation by the fan-out of one group. MMEngine's counts all groups: too small for depth-wise filters."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
