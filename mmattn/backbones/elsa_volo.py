"""ELSA-VOLO, and VOLO itself.

"ELSA: Enhanced Local Self-Attention for Vision Transformer", https://arxiv.org/abs/2112.12786
"VOLO: Vision Outlooker for Visual Recognition", https://arxiv.org/abs/2106.13112
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates, check_whole
from ..layers import MLP, Attention, PatchConv2d, token_mixers_by_stage
from ..ops.any_size import ceil_div, pad_to_multiple
from ..ops.resize import interpolated
from . import elsa_volo_weights
from .base import Backbone
from .patch_embed import stem_convolutions
from .stages import drop_path_schedule, stage_blocks


class Stem(nn.Module):
    """Patch embedding of VOLO: three convolutions at stride 2, then 4 x 4 patches."""

    def __init__(self, in_channels: int, hidden_dim: int, dim: int, norm_cfg: dict) -> None:
        super().__init__()
        self.conv = nn.Sequential(*stem_convolutions(in_channels, hidden_dim, 2, norm_cfg))
        self.proj = nn.Conv2d(hidden_dim, dim, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / 8), ceil(W / 8), dim)."""
        x = self.proj(self.conv(pad_to_multiple(x, 8, (2, 3))))
        return x.permute(0, 2, 3, 1).contiguous()  # Sums keep a layout, and each norm would copy the map.


class Downsample(nn.Module):
    """Merge 2 x 2 tokens into one, and add learned positions."""

    def __init__(self, in_dim: int, dim: int, side: int) -> None:
        super().__init__()
        self.proj = PatchConv2d(in_dim, dim, 2)
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, side, side, dim), std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_dim) -> (B, ceil(H / 2), ceil(W / 2), dim)."""
        x = self.proj(pad_to_multiple(x, 2, (1, 2)))
        return x + interpolated(self.pos_embed.permute(0, 3, 1, 2), *x.shape[1:3]).permute(0, 2, 3, 1)


@MODELS.register_module()
class ELSAVOLO(Backbone):
    """ELSA-VOLO ("ELSA", table 6): a convolutional stem, ELSA blocks at stride 8, plain attention blocks at stride 16.

    **A reconstruction.** Its authors never released it. The paper says that ELSA takes the place of outlook attention
    in VOLO, with other hyperparameters than in Swin, and does not print them. The defaults here, a kernel of 7 and a
    group width of 16 in the first stage, have the parameters that the paper prints of D1, D3 and D5 at 224 x 224. Their
    operations are 6.5 % below, 0.7 % above and 2.1 % below the printed ones.

    ``attention=None`` is VOLO itself, with the names of its release. A table of learned positions is added where the
    stride becomes 16.

    One layout throughout: (B, H, W, C) tokens. VOLO's release takes sides that are multiples of 16. Here, the image is
    padded with zeros at the bottom and the right to a multiple of 8, and the map of stride 8 to one of 2.

    Args:
        arch: 'd1' to 'd5', or a dict with ``embed_dim``, ``depths``, ``num_heads``, ``stem_dim``, ``mlp_ratio``.
            ``embed_dim`` is the number of channels of the first stage; all others have twice as many. ``depths`` has a
            number per stage, ``num_heads`` one for the first stage and one for all others, ``stem_dim`` are the
            channels of the stem. The ELSA paper has D1, D3 and D5.
        attention: the token mixers, as of :class:`mmattn.backbones.SwinFrame`; None, anywhere: VOLO's, outlook
            attention in the first stage and plain attention in all others. The default has ELSA in the first of four
            stages.
        img_size: side of the images, in pixels, that the table of positions is for. It is interpolated for other sizes.
        final_norm: whether the map of the last stage, if it is returned, has VOLO's LayerNorm; VOLO's classifier has
            it after class attention instead. All other maps are the plain sums of residuals.
        drop_rate: dropout of attention output and MLP.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block. The rate rises linearly over all blocks, but it is 0 in the
            first stage, as in VOLO's code; the ELSA paper does not say.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`. ``init_cfg=dict(type='Pretrained',
    checkpoint=..., warm_start=True)`` takes the weights of a VOLO, except those of attentions that are others here.

    Example:
        >>> import torch
        >>> from mmattn.backbones import ELSAVOLO
        >>> maps = ELSAVOLO(arch='d1').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 192, 9, 13), (1, 384, 5, 7), (1, 384, 5, 7), (1, 384, 5, 7)]
    """

    arch_zoo = {
        'd1': dict(embed_dim=192, depths=(4, 4, 8, 2), num_heads=(6, 12), stem_dim=64, mlp_ratio=3),
        'd2': dict(embed_dim=256, depths=(6, 4, 10, 4), num_heads=(8, 16), stem_dim=64, mlp_ratio=3),
        'd3': dict(embed_dim=256, depths=(8, 8, 16, 4), num_heads=(8, 16), stem_dim=64, mlp_ratio=3),
        'd4': dict(embed_dim=384, depths=(8, 8, 16, 4), num_heads=(12, 16), stem_dim=64, mlp_ratio=3),
        'd5': dict(embed_dim=384, depths=(12, 12, 20, 4), num_heads=(12, 16), stem_dim=128, mlp_ratio=4),
    }
    weights = elsa_volo_weights

    def __init__(
        self,
        arch: str | dict = 'd1',
        attention: Attention = (
            dict(type='ELSA', kernel_size=7, group_width=16, lam=0, gamma=1, qkv_bias=False),
            None,
            None,
            None,
        ),
        img_size: int = 224,
        final_norm: bool = False,
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
        depths, num_heads = arch['depths'], arch['num_heads']
        plain = [dict(type='OutlookAttention'), *[dict(type='SelfAttention')] * (len(depths) - 1)]
        token_mixers = token_mixers_by_stage(attention, depths, plain)
        check_whole('img_size', img_size)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        dims = [arch['embed_dim'], *[2 * arch['embed_dim']] * (len(depths) - 1)]
        super().__init__(
            dims,
            out_indices,
            in_channels=in_channels,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
            strides=[8] + [16] * (len(dims) - 1),
        )
        check_flags(norm_eval=norm_eval, final_norm=final_norm)
        self.norm_eval = norm_eval
        self.arch, self.final_norm, self.norm_cfg = arch, final_norm, norm_cfg

        drop_path = drop_path_schedule(depths, drop_path_rate)
        drop_path[0] = [0.0] * depths[0]
        self.patch_embed = Stem(in_channels, arch['stem_dim'], dims[0], norm_cfg)
        self.settings = dict(
            num_heads=[int(heads) for heads in num_heads], norm_eps=float(self.patch_embed.conv[1].eps)
        )
        self.network = nn.ModuleList()
        for i in range(self.num_built):
            later = int(i > 0)
            if i == 1:
                self.network.append(Downsample(dims[0], dims[1], ceil_div(img_size, 16)))
            blocks = stage_blocks(
                self,
                i,
                token_mixers[i],
                drop_path[i],
                partial(MLP, dims[i], dims[i] * arch['mlp_ratio'], drop=drop_rate),
                num_heads=num_heads[later],
                stride=8 * 2**later,
                norm_cfg=norm_cfg,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            self.network.append(nn.ModuleList(blocks))
        has_norm = final_norm and self.out_indices[-1] == self.num_stages - 1
        self.norm = nn.LayerNorm(dims[-1]) if has_norm else nn.Identity()
        self.train()

    @classmethod
    def resolve_arch(cls, arch: str | int | dict) -> dict:
        arch = super().resolve_arch(arch)
        if len(arch['depths']) < 2 or len(arch['num_heads']) != 2:
            raise ValueError(
                'arch: depths must have two or more numbers, and num_heads two, of the first stage and of all others, '
                f'not {arch["depths"]} and {arch["num_heads"]}'
            )
        for heads, dim in zip(arch['num_heads'], (arch['embed_dim'], 2 * arch['embed_dim'])):
            check_heads(dim, heads, 'arch: num_heads')
        return arch

    def stage_modules(self) -> list[list[nn.Module]]:
        stages = [[self.network[0]], *([part] for part in self.network[2:])]
        if len(stages) > 1:
            stages[1].insert(0, self.network[1])
        stages[-1].append(self.norm)
        return [[self.patch_embed], *stages]

    def forward(self, x: Tensor, box: Sequence[int] | None = None) -> tuple[Tensor, ...]:
        """Maps of images.

        Args:
            x: (B, in_channels, H, W).
            box: of MixToken, in pixels of the map of stride 16: top, left, bottom, right. Bottom and right are the
                first row and column outside of it. Its tokens after the stem are taken from the reversed batch.

        Returns:
            per output i, (B, C_i, ceil(H / s_i), ceil(W / s_i)), s_i = 8, 16, 16, 16.
        """
        return self.returned_maps(self.stage_outputs(x, box))

    def output_norm(self, stage: int) -> str:
        return 'norm' if stage == self.num_stages - 1 else ''

    def stage_outputs(self, x: Tensor, box: Sequence[int] | None = None) -> Iterator[Tensor]:
        self.check_images(x)
        x = self.patch_embed(x)
        if box is not None:
            top, left, bottom, right = (2 * side for side in box)
            reversed_batch, x = x.flip(0), x.clone()
            x[:, top:bottom, left:right] = reversed_batch[:, top:bottom, left:right]
        for i in range(self.num_built):
            if i == 1:
                x = self.network[1](x)
            for block in self.network[i + (i > 0)]:
                x = self.run(block, x)
            yield x
