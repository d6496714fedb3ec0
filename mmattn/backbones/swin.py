"""The frame of Swin Transformer, for backbones that put other attention into its blocks."""

import re
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ..layers import MLP, Block
from ..layers.any_size import pad_to_multiple
from .base import Backbone, drop_path_schedule, to_map


class SwinBackbone(Backbone):
    """Patch embedding, stages of pre-norm blocks with patch merging between, a norm per output.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: ``embed_dim``, the channels of the first stage (each further one has twice as many), ``depths`` and
            ``num_heads`` per stage, from ``resolve_arch``.
        window_size: side of the attention windows, in pixels of the map.
        attention: makes the attention of a block, from (B, H, W, C) to (B, H, W, C), of its stage (counting from 0),
            channels, heads and the displacement of its windows.
        mlp_ratio: hidden channels of the MLP as a multiple of the stage's.
        drop_rate: dropout of the embedding and MLP.
        drop_path_rate: stochastic depth of the last block; rises linearly from 0.
        in_channels: channels of the picture.
        out_indices, frozen_stages, with_cp, init_cfg: see :class:`mmattn.backbones.base.Backbone`. Stages past the
            last output are not built.

    Raises:
        ValueError: for an argument that cannot be, naming it.
    """

    release_only = re.compile(r'norm\.|head\.')
    backbone_only = re.compile(r'norm\d\.')
    resizable = re.compile(r'.*\.rb$')

    def __init__(
        self,
        arch: dict,
        window_size: int,
        attention: Callable[[int, int, int, int], nn.Module],
        mlp_ratio: float = 4.0,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        if window_size < 1:
            raise ValueError(f'window_size must be at least 1, not {window_size}')
        depths, num_heads = arch['depths'], arch['num_heads']
        dims = [arch['embed_dim'] * 2**i for i in range(len(depths))]
        super().__init__(out_indices, len(depths), frozen_stages, with_cp, init_cfg)

        drop_path = drop_path_schedule(depths, drop_path_rate)
        last = self.out_indices[-1]
        self.patch_embed = PatchEmbed(in_channels, dims[0])
        self.drop = nn.Dropout(drop_rate)
        self.layers = nn.ModuleList()
        for i in range(last + 1):
            blocks = []
            for j in range(depths[i]):
                attn = attention(i, dims[i], num_heads[i], window_size // 2 * (j % 2))
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

    @classmethod
    def resolve_arch(cls, arch: str | dict) -> dict:
        arch = super().resolve_arch(arch)
        depths, num_heads = arch['depths'], arch['num_heads']
        if len(depths) != len(num_heads) or min(depths, default=0) < 1:
            raise ValueError(
                f'arch: depths and num_heads must be of one length, depths at least 1, not {depths} and {num_heads}'
            )
        for i, heads in enumerate(num_heads):
            dim = arch['embed_dim'] * 2**i
            if heads < 1 or dim % heads:
                raise ValueError(f'arch: num_heads {heads} does not divide the {dim} channels of its stage')
        return arch

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
        return self.norm(self.proj(pad_to_multiple(x, self.patch_size, (2, 3))).permute(0, 2, 3, 1))


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
        x = pad_to_multiple(x, 2, (1, 2))
        B, H, W, C = x.shape
        x = x.view(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, 4, 2, 5).flatten(3)  # columns outermost, as released
        return self.reduction(self.norm(x))
