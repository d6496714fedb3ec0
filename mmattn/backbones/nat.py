"""The frame of NAT and DiNAT, whose stages take any token mixer instead of neighbourhood attention.

"Neighborhood Attention Transformer", https://arxiv.org/abs/2204.07143, and "Dilated Neighborhood Attention
Transformer", https://arxiv.org/abs/2209.15001
"""

from collections.abc import Sequence
from functools import partial

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_rates, check_whole
from ..layers import MLP, Attention, TokenConv2d, token_mixers_by_stage
from . import nat_weights
from .stages import Stage, Stages, drop_path_schedule, stage_blocks

#: what the factors of the channels start at in the architectures with layer scale
LAYER_SCALE = 1e-5


class Stem(nn.Module):
    """Two 3 x 3 convolutions of stride 2, and a norm."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(nn.Conv2d(in_channels, dim // 2, 3, 2, 1), nn.Conv2d(dim // 2, dim, 3, 2, 1))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / 4), ceil(W / 4), dim)."""
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Downsampling(nn.Module):
    """A 3 x 3 convolution of stride 2 to twice the channels, and a norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduction = TokenConv2d(dim, 2 * dim, 3, 2, 1, bias=False)
        self.norm = nn.LayerNorm(2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, ceil(H / 2), ceil(W / 2), 2 * dim)."""
        return self.norm(self.reduction(x))


@MODELS.register_module()
class NAT(Stages):
    """Two convolutions of stride 2, stages of pre-norm blocks with a convolution of stride 2 between them, a norm per
    output. Each stage names the token mixer of its blocks.

    Unlike Swin Transformer, it has overlapping convolutions as stem and downsampling, and more blocks with narrower
    MLPs.

    Args:
        arch: 'mini', 'tiny', 'small', 'base', or a dict with ``embed_dim``, ``depths``, ``num_heads``, ``mlp_ratio``
            and ``layer_scale``: 1 if branches have factors of the channels, which start at 1e-5, else 0. ``embed_dim``
            is the number of channels of the first stage; each further stage has twice as many.
        attention: the token mixers, as of :class:`mmattn.backbones.SwinFrame`; None: neighbourhood attention.
        drop_rate: dropout of the embedding, attention output and MLP.
        attn_drop_rate: dropout of attention weights.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`.

    With its default ``attention`` it takes the authors' classifiers, detectors and segmentors. With another,
    ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts from them.

    Example:
        >>> import torch
        >>> from mmattn.backbones import NAT
        >>> [tuple(m.shape) for m in NAT(arch='mini').eval()(torch.zeros(1, 3, 65, 97))]
        [(1, 64, 17, 25), (1, 128, 9, 13), (1, 256, 5, 7), (1, 512, 3, 4)]
    """

    arch_zoo = {
        'mini': dict(embed_dim=64, depths=(3, 4, 6, 5), num_heads=(2, 4, 8, 16), mlp_ratio=3, layer_scale=0),
        'tiny': dict(embed_dim=64, depths=(3, 4, 18, 5), num_heads=(2, 4, 8, 16), mlp_ratio=3, layer_scale=0),
        'small': dict(embed_dim=96, depths=(3, 4, 18, 5), num_heads=(3, 6, 12, 24), mlp_ratio=2, layer_scale=1),
        'base': dict(embed_dim=128, depths=(3, 4, 18, 5), num_heads=(4, 8, 16, 32), mlp_ratio=2, layer_scale=1),
    }
    stage_list = 'levels'
    plain = dict(type='NeighbourhoodAttention')
    weights = nat_weights

    def __init__(
        self,
        arch: str | dict = 'tiny',
        attention: Attention = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.2,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = dict(type='TruncNormal', layer='Linear', std=0.02),
    ) -> None:
        arch = self.resolve_arch(arch)
        depths, num_heads = arch['depths'], arch['num_heads']
        token_mixers = token_mixers_by_stage(attention, depths, [self.plain] * len(depths))
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        dims = [arch['embed_dim'] * 2**i for i in range(len(depths))]
        super().__init__(
            dims, out_indices, in_channels=in_channels, frozen_stages=frozen_stages, with_cp=with_cp, init_cfg=init_cfg
        )

        self.arch = arch
        self.settings = dict(num_heads=[int(heads) for heads in num_heads])
        drop_path = drop_path_schedule(depths, drop_path_rate)
        self.patch_embed = Stem(in_channels, dims[0])
        self.drop = nn.Dropout(drop_rate)
        self.levels = nn.ModuleList()
        for i in range(self.num_built):
            blocks = stage_blocks(
                self,
                i,
                token_mixers[i],
                drop_path[i],
                partial(MLP, dims[i], dims[i] * arch['mlp_ratio'], drop=drop_rate),
                layer_scale=LAYER_SCALE if arch['layer_scale'] else None,
                num_heads=num_heads[i],
                stride=4 * 2**i,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            self.levels.append(Stage(blocks, Downsampling(dims[i]) if i + 1 < self.num_built else None))
        for i in self.out_indices:
            self.add_module(f'norm{i}', nn.LayerNorm(dims[i]))
        self.train()

    @classmethod
    def resolve_arch(cls, arch: str | int | dict) -> dict:
        arch = super().resolve_arch(arch)
        check_whole('arch: embed_dim', arch['embed_dim'], 2)  # The stem has half as many channels in between.
        if arch['layer_scale'] not in (0, 1):
            raise ValueError(f'arch: layer_scale must be 0 or 1, not {arch["layer_scale"]!r}')
        return arch


@MODELS.register_module()
class DiNAT(NAT):
    """NAT with dilated neighbourhoods in every second block.

    Args:
        arch: 'mini', 'tiny', 'small', 'base', 'large', or a dict with the keys of NAT's and ``dilations``: the distance
            of neighbours in every second block, by stage. Those of the variants are for images of 224 x 224, whose maps
            they span. 'large_384' has those for 384 x 384.
        kernel_size: side of the neighbourhood, odd. The released 'large' with 11 is for 384 x 384.
        dilations: by stage, those of its blocks in turn, or one for all, in place of those of ``arch``: images of a
            detector are larger. See :class:`mmattn.layers.NeighbourhoodAttention`.
        kwargs: further arguments of :class:`NAT`, except ``attention``. Errors are the same.
    """

    arch_zoo = {
        'mini': dict(NAT.arch_zoo['mini'], dilations=(8, 4, 2, 1)),
        'tiny': dict(NAT.arch_zoo['tiny'], dilations=(8, 4, 2, 1)),
        'small': dict(NAT.arch_zoo['small'], layer_scale=0, dilations=(8, 4, 2, 1)),
        'base': dict(NAT.arch_zoo['base'], dilations=(8, 4, 2, 1)),
        'large': dict(
            embed_dim=192,
            depths=(3, 4, 18, 5),
            num_heads=(6, 12, 24, 48),
            mlp_ratio=2,
            layer_scale=0,
            dilations=(8, 4, 2, 1),
        ),
    }
    arch_zoo['large_384'] = dict(arch_zoo['large'], dilations=(13, 6, 3, 1))

    def __init__(
        self,
        arch: str | dict = 'tiny',
        kernel_size: int = 7,
        dilations: Sequence[int | Sequence[int]] | None = None,
        **kwargs,
    ) -> None:
        arch = self.resolve_arch(arch)
        dilations = [(1, dilation) for dilation in arch['dilations']] if dilations is None else dilations
        if not isinstance(dilations, Sequence) or len(dilations) != len(arch['depths']):
            raise ValueError(f'dilations must be a list of {len(arch["depths"])}, one per stage, not {dilations!r}')
        attention = [
            dict(type='NeighbourhoodAttention', kernel_size=kernel_size, dilation=dilation) for dilation in dilations
        ]
        super().__init__(arch, attention, **kwargs)
