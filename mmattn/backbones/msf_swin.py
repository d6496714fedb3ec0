"""MSF-Swin, the Swin Transformer with mean-shift attention in its windows.

"Mean-Shift Feature Transformer", CVPR 2024
"""

import re
from collections.abc import Sequence

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import MeanShiftWindowAttention
from .swin import SwinBackbone


@MODELS.register_module()
class MSFSwin(SwinBackbone):
    """MSF-Swin (section 3.2 and table 5): Swin Transformer whose (shifted-)window attention is mean-shift attention.

    The relative position bias, which the paper does not mention, is Swin's: added to the logits.

    Args:
        arch: 'tiny', 'small', or a dict with ``embed_dim``, ``depths``, ``num_heads``.
        attention: 'msf', or 'residual', 'gauss', 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`; 'plain' is Swin Transformer itself.
        sharing: which projections share a matrix, see there; None ties none.
        groups: groups of the projections in.
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as Swin's have; the paper's have none.
        window_size: side of the attention windows, in pixels of the map.
        mlp_ratio: hidden channels of the MLP as a multiple of the stage's.
        drop_rate: dropout of the embedding, attention output and MLP.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; rises linearly from 0.
        in_channels: channels of the picture.
        out_indices, frozen_stages, with_cp, init_cfg: see :class:`mmattn.backbones.base.Backbone`. Stages past the
            last output are not built. ``dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts with the
            weights of a Swin Transformer, as Microsoft released them or as timm has them.

    Raises:
        ValueError: for an argument that cannot be, naming it.

    Example:
        >>> import torch
        >>> from mmattn.backbones import MSFSwin
        >>> maps = MSFSwin(arch='tiny').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 17, 25), (1, 192, 9, 13), (1, 384, 5, 7), (1, 768, 3, 4)]
    """

    arch_zoo = {
        'tiny': dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        'small': dict(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24)),
    }
    warm_start_from = "a Swin Transformer in Microsoft's or timm's layout"

    def __init__(
        self,
        arch: str | dict = 'tiny',
        attention: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        window_size: int = 7,
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

        def window_attention(stage: int, dim: int, heads: int, shift: int) -> nn.Module:
            return MeanShiftWindowAttention(
                dim,
                heads,
                window_size,
                shift,
                attention=attention,
                sharing=sharing,
                groups=groups,
                group_mode=group_mode,
                proj_bias=proj_bias,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )

        super().__init__(
            arch,
            window_size,
            window_attention,
            mlp_ratio,
            drop_rate,
            drop_path_rate,
            in_channels,
            out_indices,
            frozen_stages,
            with_cp,
            init_cfg,
        )

    def warm_start(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        start = {}

        def take(prefix: str, source: str, *modules: str) -> None:
            for name in (f'{module}.{kind}' for module in modules for kind in ('weight', 'bias')):
                start[f'{prefix}{name}'] = state_dict.pop(f'{source}{name}')

        take('patch_embed.', 'patch_embed.', 'proj', 'norm')
        merging_first = 'layers.0.downsample.norm.weight' not in state_dict  # timm: at the start of the next stage
        for i, stage in enumerate(self.layers):
            for j, block in enumerate(stage.blocks):
                prefix = f'layers.{i}.blocks.{j}.'
                take(prefix, prefix, 'norm1', 'norm2', 'mlp.fc1', 'mlp.fc2')
                start.update(
                    (f'{prefix}attn.attn.{name}', value)
                    for name, value in block.attn.attn.warm_start(state_dict, f'{prefix}attn.').items()
                )
                # Swin's table is indexed by query minus key, the reverse of ours.
                table = state_dict.pop(f'{prefix}attn.relative_position_bias_table')
                start[f'{prefix}attn.rb'] = table.t().flip(1)
            if stage.downsample is not None:
                source = f'layers.{i + merging_first}.downsample.'
                take(f'layers.{i}.downsample.', source, 'norm')
                start[f'layers.{i}.downsample.reduction.weight'] = state_dict.pop(f'{source}reduction.weight')
        return start

    @property
    def warm_start_drops(self) -> re.Pattern:
        computed = r'layers\.\d+\.blocks\.\d+\.(attn\.(relative_position_index|qkv\.|proj\.)|attn_mask)'
        return re.compile(f'{computed}|{self.release_only.pattern}')
