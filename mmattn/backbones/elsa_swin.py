"""ELSA-Swin, the Swin Transformer with enhanced local self-attention.

"ELSA: Enhanced Local Self-Attention for Vision Transformer", https://arxiv.org/abs/2112.12786
"""
import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import ELSA, MLP, Block, WindowAttention
from .base import Backbone, drop_path_schedule, to_map


@MODELS.register_module()
class ELSASwin(Backbone):
    r"""ELSA-Swin (section 6 and table 6): ELSA blocks in stages 0 to 2, shifted-window attention in stage 3.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'small', 'base', or a dict with ``embed_dim``, ``depths``, ``num_heads``, ``group_width``.
        kernel_size: side of the ELSA neighbourhood, odd.
        dilation: distance of ELSA neighbours, in pixels of the map.
        group_width: channels per group of the Hadamard convolution; the arch's unless given.
        lam: :math:`\lambda` of equation 8. The released models have 0: no ghost multiplier.
        gamma: :math:`\gamma` of equation 8. ``lam=0, gamma=0`` is Hadamard attention without ghost head (table 4).
        elsa_stages: stages with ELSA blocks, the others have window attention; () is table 4's base model.
        window_size: side of the attention windows, in pixels of the map.
        mlp_ratio: hidden channels of the MLP as a multiple of the stage's.
        drop_rate: dropout of the embedding, attention output and MLP.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; rises linearly from 0.
        in_channels: channels of the picture.
        out_indices, frozen_stages, with_cp, init_cfg: see :class:`mmattn.backbones.base.Backbone`. Stages past the
            last output are not built.

    Raises:
        ValueError: for an argument that cannot be, naming it.

    Example:
        >>> import torch
        >>> from mmattn.backbones import ELSASwin
        >>> maps = ELSASwin(arch='tiny').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 17, 25), (1, 192, 9, 13), (1, 384, 5, 7), (1, 768, 3, 4)]
    """

    arch_zoo = {
        'tiny': dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), group_width=4),
        'small': dict(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24), group_width=8),
        'base': dict(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), group_width=8),
    }
    release_only = re.compile(r'norm\.|head\.|.*\.relative_id$')
    backbone_only = re.compile(r'norm\d\.')
    resizable = re.compile(r'.*\.rb$')

    def __init__(self,
                 arch: str | dict = 'tiny',
                 kernel_size: int = 7,
                 dilation: int = 1,
                 group_width: int | None = None,
                 lam: float = 0.,
                 gamma: float = 1.,
                 elsa_stages: Sequence[int] = (0, 1, 2),
                 window_size: int = 7,
                 mlp_ratio: float = 4.,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.1,
                 in_channels: int = 3,
                 out_indices: Sequence[int] = (0, 1, 2, 3),
                 frozen_stages: int = -1,
                 with_cp: bool = False,
                 init_cfg: dict | list[dict] | None = dict(type='TruncNormal', layer='Linear', std=0.02)) -> None:
        arch = self.resolve_arch(arch)
        depths, num_heads = arch['depths'], arch['num_heads']
        group_width = arch['group_width'] if group_width is None else group_width
        dims = [arch['embed_dim'] * 2**i for i in range(len(depths))]
        _check(dims, depths, num_heads, group_width, kernel_size, dilation, elsa_stages, window_size)
        super().__init__(out_indices, len(depths), frozen_stages, with_cp, init_cfg)

        drop_path = drop_path_schedule(depths, drop_path_rate)
        last = self.out_indices[-1]
        self.patch_embed = PatchEmbed(in_channels, dims[0])
        self.drop = nn.Dropout(drop_rate)
        self.layers = nn.ModuleList()
        for i in range(last + 1):
            blocks = []
            for j in range(depths[i]):
                if i in elsa_stages:
                    attn: nn.Module = ELSA(dims[i], num_heads[i], kernel_size, dilation, group_width, lam, gamma,
                                           attn_drop_rate, drop_rate)
                else:
                    attn = WindowAttention(dims[i], num_heads[i], window_size, window_size // 2 * (j % 2),
                                           attn_drop_rate, drop_rate)
                mlp = MLP(dims[i], int(dims[i] * mlp_ratio), drop_rate)
                blocks.append(Block(dims[i], attn, mlp, drop_path[i][j]))
            self.layers.append(Stage(blocks, PatchMerging(dims[i]) if i < last else None))
        for i in self.out_indices:
            self.add_module(f'norm{i}', nn.LayerNorm(dims[i]))

        # Of a whole release, what the stages that are not built would have used.
        unbuilt = [rf'layers\.{i}\.' for i in range(last + 1, len(depths))] + [rf'layers\.{last}\.downsample\.']
        absent = [rf'norm{i}\.' for i in range(len(depths)) if i not in self.out_indices]
        self.release_only = re.compile('|'.join([type(self).release_only.pattern, *unbuilt, *absent]))
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        norms = {i: [getattr(self, f'norm{i}')] for i in self.out_indices}
        return [[self.patch_embed, self.drop], *([stage, *norms.get(i, [])] for i, stage in enumerate(self.layers))]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output i, (B, C_i, ceil(H / s_i), ceil(W / s_i)), s_i = 4, 8, 16, 32."""
        outs = []
        x = self.drop(self.patch_embed(x))
        for i, stage in enumerate(self.layers):
            for block in stage.blocks:
                x = self.run(block, x)
            if i in self.out_indices:
                outs.append(to_map(getattr(self, f'norm{i}')(x)))
            if stage.downsample is not None:
                x = stage.downsample(x)
        return tuple(outs)


class PatchEmbed(nn.Module):
    """4 x 4 patches, padded right and bottom, to tokens."""

    def __init__(self, in_channels: int, dim: int, patch_size: int = 4) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, patch_size, patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / 4), ceil(W / 4), dim)."""
        x = F.pad(x, (0, -x.shape[-1] % self.patch_size, 0, -x.shape[-2] % self.patch_size))
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Stage(nn.Module):
    """The blocks of one resolution, and what leads to the next."""

    def __init__(self, blocks: list[nn.Module], downsample: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample


class PatchMerging(nn.Module):
    """2 x 2 neighbours to one token of twice the channels; odd sizes are padded right and bottom."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, ceil(H / 2), ceil(W / 2), 2 * dim)."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = torch.cat((x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]), -1)
        return self.reduction(self.norm(x))


def _check(dims: list[int], depths: Sequence[int], num_heads: Sequence[int], group_width: int, kernel_size: int,
           dilation: int, elsa_stages: Sequence[int], window_size: int) -> None:
    if len(depths) != len(num_heads) or min(depths, default=0) < 1:
        raise ValueError(f'arch: depths and num_heads must be of one length, depths at least 1, '
                         f'not {depths} and {num_heads}')
    for dim, heads in zip(dims, num_heads):
        if heads < 1 or dim % heads:
            raise ValueError(f'arch: num_heads {heads} does not divide the {dim} channels of its stage')
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f'kernel_size must be odd, not {kernel_size}')
    for name, value in (('dilation', dilation), ('group_width', group_width), ('window_size', window_size)):
        if value < 1:
            raise ValueError(f'{name} must be at least 1, not {value}')
    if not set(elsa_stages) <= set(range(len(depths))):
        raise ValueError(f'elsa_stages must be stage numbers from 0 to {len(depths) - 1}, not {tuple(elsa_stages)}')
