"""The frame of Swin Transformer, whose stages take any token mixer in the place of attention.

"Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", https://arxiv.org/abs/2103.14030
"""

from collections.abc import Sequence
from functools import partial

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_rates, check_whole, hidden_channels
from ..layers import MLP, Attention, token_mixers_by_stage
from ..ops.any_size import pad_to_multiple
from . import swin_weights
from .patch_embed import PatchEmbed
from .stages import Stage, Stages, drop_path_schedule, stage_blocks


class PatchMerging(nn.Module):
    """Merge 2 x 2 tokens into one with twice the channels. Odd sizes are padded at the bottom and the right."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, ceil(H / 2), ceil(W / 2), 2 * dim)."""
        x = pad_to_multiple(x, 2, (1, 2))
        B, H, W, C = x.shape
        x = x.view(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 4, 2, 5).flatten(3)  # columns before rows, as released
        return self.reduction(self.norm(x))


@MODELS.register_module()
class SwinFrame(Stages):
    """Patch embedding, stages of pre-norm blocks with patch merging between them, a norm per output. Each stage names
    the token mixer of its blocks.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'small', 'base', or a dict with ``embed_dim``, ``depths`` and ``num_heads``. ``embed_dim`` is the
            number of channels of the first stage; each further stage has twice as many.
        attention: the token mixer of every stage, as ``dict(type='ELSA', kernel_size=5)``, or a list with that of each;
            in the place of a token mixer, a list of those that the blocks of the stage have in turn. None, anywhere:
            Swin Transformer's. See :func:`mmattn.layers.build_token_mixer`.
        window_size: side of the attention windows, in pixels of the map, where the token mixer does not set it.
        shift_small_maps: whether windows are shifted along an axis where the map fits into one window, as the last map
            of a 224 x 224 image does. Swin's detectors and segmentors shift there, its classifiers do not.
        mlp_ratio: hidden channels of the MLP divided by the channels of the stage.
        drop_rate: dropout of the embedding, attention output and MLP.
        attn_drop_rate: dropout of attention weights.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`.

    With its default ``attention`` it takes the weights of a Swin Transformer as Microsoft, timm, torchvision,
    MMDetection, MMSegmentation and MMPretrain have them, alone or inside a detector or segmentor, and returns the same
    maps. Other frames take what they can with ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)``,
    also from a ``SwinFrame`` that was trained here; the log names what they take. Classifiers need
    ``shift_small_maps=False`` for the same maps of small images.

    Example:
        >>> import torch
        >>> from mmattn.backbones import SwinFrame
        >>> mixers = [dict(type='ELSA'), dict(type='ELSA', kernel_size=5), dict(type='MeanShiftWindow')]
        >>> backbone = SwinFrame(arch='tiny', attention=[*mixers, dict(type='GlobalSelfAttention')])
        >>> [tuple(m.shape) for m in backbone.eval()(torch.zeros(1, 3, 65, 97))]
        [(1, 96, 17, 25), (1, 192, 9, 13), (1, 384, 5, 7), (1, 768, 3, 4)]
    """

    arch_zoo = {
        'tiny': dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        'small': dict(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
        'base': dict(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32)),
    }
    weights = swin_weights
    plain = dict(type='WindowAttention')

    def __init__(
        self,
        arch: str | dict = 'tiny',
        attention: Attention = None,
        window_size: int = 7,
        shift_small_maps: bool = True,
        mlp_ratio: float = 4.0,
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
        token_mixers = token_mixers_by_stage(attention, depths, [self.plain] * len(depths))
        check_whole('window_size', window_size)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        dims = [arch['embed_dim'] * 2**i for i in range(len(depths))]
        super().__init__(
            dims, out_indices, in_channels=in_channels, frozen_stages=frozen_stages, with_cp=with_cp, init_cfg=init_cfg
        )

        self.arch, self.shift_small_maps, self.mlp_ratio = arch, shift_small_maps, mlp_ratio
        self.settings = dict(num_heads=[int(heads) for heads in num_heads])
        drop_path = drop_path_schedule(depths, drop_path_rate)
        self.patch_embed = PatchEmbed(in_channels, dims[0], 4)
        self.drop = nn.Dropout(drop_rate)
        self.layers = nn.ModuleList()
        for i in range(self.num_built):
            hidden = hidden_channels(dims[i], mlp_ratio)
            blocks = stage_blocks(
                self,
                i,
                token_mixers[i],
                drop_path[i],
                partial(MLP, dims[i], hidden, drop=drop_rate),
                num_heads=num_heads[i],
                stride=4 * 2**i,
                window_size=window_size,
                shift_small_maps=shift_small_maps,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            self.layers.append(Stage(blocks, PatchMerging(dims[i]) if i + 1 < self.num_built else None))
        for i in self.out_indices:
            self.add_module(f'norm{i}', nn.LayerNorm(dims[i]))
        self.train()
