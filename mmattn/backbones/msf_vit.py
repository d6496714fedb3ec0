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
from ..layers.checks import check_rates, check_whole, hidden_channels
from ..weights import Translation, take, take_out
from .base import Backbone, drop_path_schedule, to_map


@MODELS.register_module()
class MSFViT(Backbone):
    """MSF-ViT (section 3 and table 5): the simple ViT of "Better plain ViT baselines for ImageNet-1k", with mean-shift
    attention. It has no class token. Its position code is fixed and computed for the size of the image.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        patch_size: side of the patches, in pixels. If it does not divide an image, the image is padded with zeros at
            the bottom and the right.
        attention: 'msf'; or 'residual', 'gauss' (table 3), 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`. 'plain' is the paper's own baseline ViT.
        sharing: which projections share a matrix (tables 1 and 2), see there; by default none.
        groups: groups of the input projections (table 4).
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as in other ViTs; in the paper they have none.
        mlp_ratio: hidden channels of the MLP divided by the channels of the embedding.
        final_norm: whether the last output has a LayerNorm. All other outputs are the plain sums of residuals.
        drop_rate: dropout of the embedding, attention output and MLP.
        attn_drop_rate: dropout of attention weights.
        out_indices: blocks whose maps are returned, ascending, counted from 0; by default the last one.
        frozen_stages: freezes the patch embedding (0) and that many blocks.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`. By default layers start as torch
    initialises them, like the release. ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts
    with the weights of a plain ViT of timm.

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
    layouts = {
        'a mean-shift (MSF) ViT': r'transformer\.layers\.\d+\.0\.to_qkvp\.|(?<!\d\.)blocks\.\d+\.attn\.pre_proj\.',
        'a ViT or DeiT': r'blocks\.\d+\.attn\.qkv\.|layers\.\d+\.attn\.attn\.in_proj_weight',
    }
    warm_start_from = 'a ViT or DeiT'
    head_names = {'linear_head.0.': 'head.norm.', 'linear_head.1.': 'head.fc.'}

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
        _check(dim, num_heads, patch_size)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        out_indices = (depth - 1,) if out_indices is None else out_indices
        super().__init__(
            [dim] * depth,
            out_indices,
            in_channels=in_channels,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )

        (drop_path,) = drop_path_schedule([depth], drop_path_rate)
        self.patch_embed = PatchEmbed(in_channels, dim, patch_size)
        self.drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList()
        for rate in drop_path[: self.out_indices[-1] + 1]:
            attn = MeanShiftAttention(
                dim,
                num_heads,
                attention=attention,
                sharing=sharing,
                groups=groups,
                group_mode=group_mode,
                proj_bias=proj_bias,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            self.blocks.append(Block(dim, attn, MLP(dim, hidden_channels(dim, mlp_ratio), drop_rate), rate))
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.settings = dict(self.blocks[0].attn.settings, num_heads=int(num_heads), patch_size=int(patch_size))
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        *blocks, last = self.blocks
        return [[self.patch_embed, self.drop], *([block] for block in blocks), [last, self.norm]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output, (B, C, ceil(H / patch_size), ceil(W / patch_size))."""
        self.check_images(x)
        outs = []
        x = self.embed(x)
        for i, block in enumerate(self.blocks):
            x = self.run(block, x)
            if i in self.out_indices:
                outs.append(to_map(self.norm(x) if i == self.out_indices[-1] else x))
        return tuple(outs)

    def embed(self, x: Tensor) -> Tensor:
        """The input of the first block. x: (B, in_channels, H, W) -> (B, h, w, C)."""
        x = self.patch_embed(x)
        return self.drop(x + position_code(*x.shape[1:], device=x.device).to(x.dtype))

    @torch.no_grad()
    def feature_norms(self, x: Tensor) -> Tensor:
        """Mean L2 norm of the features of each image, after the patch embedding and after every block (figure 4).

        x: (B, in_channels, H, W) -> (1 + blocks, B).
        """
        x = self.embed(x)
        norms = [x.norm(dim=-1).mean((1, 2))]
        for block in self.blocks:
            x = block(x)
            norms.append(x.norm(dim=-1).mean((1, 2)))
        return torch.stack(norms)

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """A release has other names, a classifier ``linear_head`` and no final norm.

        A warm start takes timm's plain ViT: all but the class token, the position code and what mean-shift attention
        has more.
        """
        tensors, start = dict(state_dict), {}
        if warm_start:
            start = self._take_plain_vit(tensors)
            blocks = range(len(self.blocks))
            dropped = take_out(
                tensors,
                'head',
                'fc_norm.',
                'pre_logits.',
                *(f'blocks.{i}.attn.{name}.' for i in blocks for name in ('qkv', 'proj')),
                *([] if 'norm.weight' in start else ['norm.']),
            )
            for name in ('cls_token', 'dist_token', 'pos_embed'):
                if tensors.pop(name, None) is not None:
                    dropped.append(name)
        else:
            for pattern, ours in RELEASED_NAMES.items():
                tensors = {re.sub(pattern, ours, name): value for name, value in tensors.items()}
            dropped = take_out(tensors, 'linear_head.')
            if isinstance(self.norm, nn.Identity):
                dropped += take_out(tensors, 'norm.')
        dropped += take_out(tensors, *(f'blocks.{i}.' for i in range(len(self.blocks), self.num_stages)))
        fresh = []
        if isinstance(self.norm, nn.LayerNorm) and not any(name.startswith('norm.') for name in tensors):
            fresh = ['norm.weight', 'norm.bias']
        return Translation({**tensors, **start}, dropped, fresh)

    def _take_plain_vit(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Own tensors, by name, from a plain ViT of timm. They are removed from the state dict.

        Raises:
            KeyError: naming a tensor that should be in the state dict.
            CheckpointError: naming a tensor of another shape that has to be rearranged.
        """
        start = {}

        def move(prefix: str, *modules: str) -> None:
            for name in (f'{prefix}{module}.{kind}' for module in modules for kind in ('weight', 'bias')):
                start[name] = state_dict.pop(name)

        # timm's convolution of patches is a linear layer on patches in another order, here between two norms.
        dim, p = self.patch_embed.proj.out_features, self.patch_embed.patch_size
        kernel = take(state_dict, 'patch_embed.proj.weight', dim, self.in_channels, p, p)
        start['patch_embed.proj.weight'] = kernel.permute(0, 2, 3, 1).flatten(1)
        start['patch_embed.proj.bias'] = state_dict.pop('patch_embed.proj.bias')
        for i, block in enumerate(self.blocks):
            prefix = f'blocks.{i}.'
            move(prefix, 'norm1', 'norm2', 'mlp.fc1', 'mlp.fc2')
            for name, value in block.attn.warm_start(state_dict, f'{prefix}attn.').items():
                start[f'{prefix}attn.{name}'] = value
        if isinstance(self.norm, nn.LayerNorm) and len(self.blocks) == self.num_stages:
            move('', 'norm')
        return start


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
    """Patches as tokens: norm, linear layer, norm. A patch is flattened as (row, column, channel)."""

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


def _check(dim: int, num_heads: int, patch_size: int) -> None:
    if dim < 8 or dim % 4:
        raise ValueError(f'arch: embed_dim must be a multiple of 4 and at least 8, for the position code, not {dim}')
    if dim % num_heads:
        raise ValueError(f'arch: num_heads {num_heads} does not divide the {dim} channels')
    check_whole('patch_size', patch_size)
