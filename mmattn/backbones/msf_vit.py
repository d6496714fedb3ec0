"""MSF-ViT, the Vision Transformer with mean-shift attention.

"Mean-Shift Feature Transformer", CVPR 2024
"""

import re
from collections.abc import Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..layers import MLP, Block, MeanShiftAttention
from ..layers.any_size import pad_to_multiple
from .base import Backbone, drop_path_schedule, to_map


@MODELS.register_module()
class MSFViT(Backbone):
    """MSF-ViT (section 3 and table 5): the simple ViT of "Better plain ViT baselines for ImageNet-1k", with mean-shift
    attention. It has no class token, and a fixed position code, which is made for the size at hand.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        patch_size: side of the patches, in pixels. A picture that they do not divide is padded with zeros to the right
            and bottom.
        attention: 'msf', or 'residual', 'gauss' (table 3), 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`; 'plain' is the paper's own baseline ViT.
        sharing: which projections share a matrix (tables 1 and 2), see there; None ties none.
        groups: groups of the projections in (table 4).
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as other ViTs have; the paper's have none.
        mlp_ratio: hidden channels of the MLP as a multiple of the embedding's.
        final_norm: a LayerNorm of the last output; the others, and without it the last too, are the plain sums of
            residuals.
        drop_rate: dropout of the embedding, attention output and MLP.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; rises linearly from 0.
        in_channels: channels of the picture.
        out_indices: blocks whose maps are returned, ascending, counting from 0; None stands for the last one.
        frozen_stages: the patch embedding (0) and the first so many blocks are frozen.
        with_cp, init_cfg: see :class:`mmattn.backbones.base.Backbone`. Blocks past the last output are not built. By
            default layers start as torch has them, like the release.
            ``dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts with the weights of a plain ViT of timm.

    Raises:
        ValueError: for an argument that cannot be, naming it.

    Example:
        >>> import torch
        >>> from mmattn.backbones import MSFViT
        >>> maps = MSFViT(arch='small', out_indices=(2, 5, 8, 11)).eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 384, 5, 7), (1, 384, 5, 7), (1, 384, 5, 7), (1, 384, 5, 7)]
    """

    arch_zoo = {
        'tiny': dict(embed_dim=192, depth=12, num_heads=3),
        'ss': dict(embed_dim=384, depth=6, num_heads=6),
        'small': dict(embed_dim=384, depth=12, num_heads=6),
        'base': dict(embed_dim=768, depth=12, num_heads=12),
    }
    release_only = re.compile(r'linear_head\.')
    backbone_only = re.compile(r'norm\.')
    warm_start_from = 'a ViT or DeiT'

    def __init__(
        self,
        arch: str | dict = 'small',
        patch_size: int = 16,
        attention: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        mlp_ratio: float = 4.0,
        final_norm: bool = False,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        in_channels: int = 3,
        out_indices: Sequence[int] | None = None,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        arch = self.resolve_arch(arch)
        dim, depth, num_heads = arch['embed_dim'], arch['depth'], arch['num_heads']
        _check(dim, depth, num_heads, patch_size)
        super().__init__((depth - 1,) if out_indices is None else out_indices, depth, frozen_stages, with_cp, init_cfg)
        self.depth = depth

        (drop_path,) = drop_path_schedule([depth], drop_path_rate)
        built = self.out_indices[-1] + 1
        self.patch_embed = PatchEmbed(in_channels, dim, patch_size)
        self.drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                MeanShiftAttention(
                    dim, num_heads, attention, sharing, groups, group_mode, proj_bias, attn_drop_rate, drop_rate
                ),
                MLP(dim, int(dim * mlp_ratio), drop_rate),
                rate,
            )
            for rate in drop_path[:built]
        )
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()

        # Of a whole release, what is not built.
        unbuilt = [rf'blocks\.{i}\.' for i in range(built, depth)] + ([] if final_norm else [r'norm\.'])
        self.release_only = re.compile('|'.join([type(self).release_only.pattern, *unbuilt]))
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        *blocks, last = self.blocks
        return [[self.patch_embed, self.drop], *([block] for block in blocks), [last, self.norm]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output, (B, C, ceil(H / patch_size), ceil(W / patch_size))."""
        outs = []
        x = self.embed(x)
        for i, block in enumerate(self.blocks):
            x = self.run(block, x)
            if i in self.out_indices:
                outs.append(to_map(self.norm(x) if i == self.out_indices[-1] else x))
        return tuple(outs)

    def embed(self, x: Tensor) -> Tensor:
        """What enters the first block. x: (B, in_channels, H, W) -> (B, h, w, C)."""
        x = self.patch_embed(x)
        return self.drop(x + position_code(*x.shape[1:], device=x.device).to(x.dtype))

    @torch.no_grad()
    def feature_norms(self, x: Tensor) -> Tensor:
        """Mean L2 norm of the features of each picture, at the patch embedding and after every block (figure 4).

        x: (B, in_channels, H, W) -> (1 + blocks, B).
        """
        x = self.embed(x)
        norms = [x.norm(dim=-1).mean((1, 2))]
        for block in self.blocks:
            x = block(x)
            norms.append(x.norm(dim=-1).mean((1, 2)))
        return torch.stack(norms)

    def released_names(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        def rename(name: str) -> str:
            for pattern, ours in RELEASED_NAMES.items():
                name = re.sub(pattern, ours, name)
            return name

        return {rename(name): value for name, value in state_dict.items()}

    def warm_start(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        start = {}

        def take(prefix: str, *modules: str) -> None:
            for name in (f'{prefix}{module}.{kind}' for module in modules for kind in ('weight', 'bias')):
                start[name] = state_dict.pop(name)

        # The filters of a convolution are those of a linear layer on patches of another order, here between two norms.
        take('patch_embed.', 'proj')
        start['patch_embed.proj.weight'] = start['patch_embed.proj.weight'].permute(0, 2, 3, 1).flatten(1)
        for i, block in enumerate(self.blocks):
            prefix = f'blocks.{i}.'
            take(prefix, 'norm1', 'norm2', 'mlp.fc1', 'mlp.fc2')
            start.update(
                (f'{prefix}attn.{name}', value)
                for name, value in block.attn.warm_start(state_dict, f'{prefix}attn.').items()
            )
        if isinstance(self.norm, nn.LayerNorm) and len(self.blocks) == self.depth:
            take('', 'norm')
        return start

    @property
    def warm_start_drops(self) -> re.Pattern:
        return re.compile(
            r'cls_token$|dist_token$|pos_embed$|norm\.|fc_norm\.|head|pre_logits\.|'
            rf'blocks\.\d+\.attn\.(qkv|proj)\.|{self.release_only.pattern}'
        )


#: pattern in a name of the release -> ours
RELEASED_NAMES = {
    r'^to_patch_embedding\.1\.': 'patch_embed.patch_norm.',
    r'^to_patch_embedding\.2\.': 'patch_embed.proj.',
    r'^to_patch_embedding\.3\.': 'patch_embed.norm.',
    r'^transformer\.layers\.(\d+)\.0\.norm\.': r'blocks.\1.norm1.',
    r'^transformer\.layers\.(\d+)\.0\.to_qkvp?\.': r'blocks.\1.attn.pre_proj.',
    r'^transformer\.layers\.(\d+)\.0\.to_out\.': r'blocks.\1.attn.post_proj.',
    r'^transformer\.layers\.(\d+)\.1\.net\.0\.': r'blocks.\1.norm2.',
    r'^transformer\.layers\.(\d+)\.1\.net\.1\.': r'blocks.\1.mlp.fc1.',
    r'^transformer\.layers\.(\d+)\.1\.net\.3\.': r'blocks.\1.mlp.fc2.',
}


class PatchEmbed(nn.Module):
    """Patches, flattened as (row, column, channel), between a norm and a norm to tokens."""

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.patch_norm = nn.LayerNorm(in_channels * patch_size**2)
        self.proj = nn.Linear(in_channels * patch_size**2, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / patch_size), ceil(W / patch_size), dim)."""
        p = self.patch_size
        x = pad_to_multiple(x, p, (2, 3))
        x = x.unflatten(3, (-1, p)).unflatten(2, (-1, p)).permute(0, 2, 4, 3, 5, 1).flatten(3)
        return self.norm(self.proj(self.patch_norm(x)))


def position_code(height: int, width: int, dim: int, device: torch.device | None = None) -> Tensor:
    """(height, width, dim): sines and cosines of the column, then of the row, at dim / 4 frequencies, float32."""
    frequencies = 10000.0 ** -torch.linspace(0, 1, dim // 4, device=device)
    x = torch.arange(width, device=device)[:, None] * frequencies
    y = torch.arange(height, device=device)[:, None] * frequencies
    x, y = (torch.cat((angle.sin(), angle.cos()), 1) for angle in (x, y))
    return torch.cat((x.expand(height, -1, -1), y[:, None].expand(-1, width, -1)), 2)


def _check(dim: int, depth: int, num_heads: int, patch_size: int) -> None:
    if dim < 8 or dim % 4:
        raise ValueError(f'arch: embed_dim must be a multiple of 4 from 8 up, for the position code, not {dim}')
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f'arch: num_heads {num_heads} does not divide the {dim} channels')
    for name, value in (('arch: depth', depth), ('patch_size', patch_size)):
        if value < 1:
            raise ValueError(f'{name} must be at least 1, not {value}')
