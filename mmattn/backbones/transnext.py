"""TransNeXt.

"TransNeXt: Robust Foveal Visual Perception for Vision Transformers", https://arxiv.org/abs/2311.17132
"""

from collections.abc import Sequence

from mmengine.registry import MODELS

from ..layers import Attention, token_mixers_by_stage
from . import transnext_weights
from .shunted import ShuntedTransformer


@MODELS.register_module()
class TransNeXt(ShuntedTransformer):
    """TransNeXt (section 3.3 and table 1): the stages of PVTv2, with aggregated attention in the first three, cosine
    attention in the last, and gated feed-forward layers with a convolution.

    Images may have any size. The sides of the maps are ceil(side / stride). Attention pools a map to 1 / r of its
    sides, rounded down, as in the released detectors, but at least to one token.

    Args:
        arch: 'micro', 'tiny', 'small', 'base', or a dict with ``embed_dims``, ``depths`` and ``num_heads``.
        reductions: r of each stage. 1 means cosine attention to all tokens. The released Micro "AAAA", with aggregated
            attention in all stages, has (16, 8, 4, 2).
        mlp_ratios: per stage, hidden channels of a plain feed-forward layer divided by the channels of the stage. The
            gated layer of the same cost has two halves of 2/3 as many.
        pretrain_size, img_size: see :class:`mmattn.layers.CosineAttention`. The released detectors have 224 and 800,
            the segmentors 224 and 512. The classifiers have 224 and None, also those for images of 384; "AAAA" has 256
            and None.
        attention: config of a token mixer in the place of the own attention, or a list, see
            :class:`mmattn.backbones.ShuntedTransformer`.
        drop_rate: dropout of attention output and MLP.
        attn_drop_rate: dropout of attention weights.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`. Convolutions start as in the release,
    whatever ``init_cfg`` says of other layers.

    With its default ``attention`` it takes the weights of the author's classifiers, detectors and segmentors.

    Example:
        >>> import torch
        >>> from mmattn.backbones import TransNeXt
        >>> maps = TransNeXt(arch='micro').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 48, 17, 25), (1, 96, 9, 13), (1, 192, 5, 7), (1, 384, 3, 4)]
    """

    arch_zoo = {
        'micro': dict(embed_dims=(48, 96, 192, 384), depths=(2, 2, 15, 2), num_heads=(2, 4, 8, 16)),
        'tiny': dict(embed_dims=(72, 144, 288, 576), depths=(2, 2, 15, 2), num_heads=(3, 6, 12, 24)),
        'small': dict(embed_dims=(72, 144, 288, 576), depths=(5, 5, 22, 5), num_heads=(3, 6, 12, 24)),
        'base': dict(embed_dims=(96, 192, 384, 768), depths=(5, 5, 23, 5), num_heads=(4, 8, 16, 32)),
    }
    weights = transnext_weights

    def __init__(
        self,
        arch: str | dict = 'tiny',
        reductions: Sequence[int] = (8, 4, 2, 1),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        pretrain_size: int = 224,
        img_size: int | None = None,
        attention: Attention = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = dict(type='TruncNormal', layer='Linear', std=0.02),
    ) -> None:
        arch, sizes = self.resolve_arch(arch), dict(pretrain_size=pretrain_size, img_size=img_size)
        if not isinstance(reductions, Sequence):
            raise ValueError(f'reductions must be a list of whole numbers, one per stage, not {reductions!r}')
        plain = [dict(sizes, type='CosineAttention' if r == 1 else 'AggregatedAttention') for r in reductions]
        super().__init__(
            arch,
            reductions,
            mlp_ratios,
            stem='convolution',
            stem_convs=0,
            feed_forward='glu',
            attention=token_mixers_by_stage(attention, arch['depths'], plain),
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            in_channels=in_channels,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
