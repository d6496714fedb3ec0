"""The frame of a plain Vision Transformer, whose blocks take any mechanism in the place of attention."""

import math
from collections.abc import Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_choice, check_flags, check_heads, check_rates, check_whole, hidden_channels
from ..layers import FEED_FORWARD, Block, build_mechanism, check_mechanism, mechanism_settings
from ..layers.any_size import ceil_div
from ..weights import Translation, take, take_out
from .base import Backbone, drop_path_schedule, to_map
from .patch_embed import DeiTEmbed, PrefixTokens, SimpleEmbed, fit_tables, interpolated


@MODELS.register_module()
class ViTFrame(Backbone):
    """Patch embedding and pre-norm blocks of one resolution.

    One layout throughout: (B, H, W, C) tokens. A class token and registers stand beside them, (B, P, C), for the
    mechanisms that take them, as plain attention (``SelfAttention``) does. They are in no output.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        attention: the mechanism of the blocks, see :func:`mmattn.layers.build_mechanism`. The default is plain
            attention.
        feed_forward: 'plain', 'conv' or 'detail', the rows of table 9 of "Shunted Self-Attention".
        embedding: 'simple', as "Better plain ViT baselines for ImageNet-1k" has it: a linear layer on patches between
            two norms, and a fixed position code. Or 'deit': a convolution, and a learned table of positions.
        img_size: side of the images, in pixels, that the learned table of positions is for. It is interpolated for
            other sizes.
        patch_size: side of the patches, in pixels. If it does not divide an image, the image is padded with zeros at
            the bottom and the right.
        class_token: whether there is a class token.
        registers: number of registers ("Vision Transformers Need Registers").
        mlp_ratio: hidden channels of the feed-forward layers divided by the channels of the embedding.
        final_norm: whether the last output has a LayerNorm. All other outputs are the plain sums of residuals.
        drop_rate: dropout of the embedding, attention output and feed-forward layers.
        attn_drop_rate: dropout of attention weights.
        out_indices: blocks whose maps are returned, ascending, counted from 0; by default the last one.
        frozen_stages: freezes the patch embedding (0) and that many blocks.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`.
    ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts with the weights of a plain ViT of
    timm.

    Example:
        >>> import torch
        >>> from mmattn.backbones import ViTFrame
        >>> backbone = ViTFrame(arch='tiny', attention=dict(type='GhostHeadAttention'), embedding='deit')
        >>> [tuple(m.shape) for m in backbone.eval()(torch.zeros(1, 3, 65, 97))]
        [(1, 192, 5, 7)]
    """

    arch_zoo = {
        'tiny': dict(embed_dim=192, depth=12, num_heads=3),
        'ss': dict(embed_dim=384, depth=6, num_heads=6),
        'small': dict(embed_dim=384, depth=12, num_heads=6),
        'base': dict(embed_dim=768, depth=12, num_heads=12),
    }
    warm_start_from = 'a ViT or DeiT'
    layouts = {'a ViT or DeiT': r'blocks\.\d+\.attn\.qkv\.|layers\.\d+\.attn\.attn\.in_proj_weight'}

    def __init__(
        self,
        arch: str | dict = 'small',
        attention: dict = dict(type='MeanShiftAttention', attention='plain', proj_bias=True),
        feed_forward: str = 'plain',
        embedding: str = 'simple',
        img_size: int = 224,
        patch_size: int = 16,
        class_token: bool = False,
        registers: int = 0,
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
        check_heads(dim, num_heads, 'arch: num_heads')
        check_mechanism('attention', attention)
        check_choice('feed_forward', feed_forward, FEED_FORWARD)
        check_choice('embedding', embedding, ('simple', 'deit'))
        check_whole('patch_size', patch_size)
        check_whole('img_size', img_size)
        check_whole('registers', registers, 0)
        check_flags(class_token=class_token)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        super().__init__(
            [dim] * depth,
            (depth - 1,) if out_indices is None else out_indices,
            in_channels=in_channels,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )

        self._of_source = dict(
            arch=arch,
            patch_size=patch_size,
            mlp_ratio=mlp_ratio,
            final_norm=final_norm,
            in_channels=in_channels,
            out_indices=out_indices,
        )
        (drop_path,) = drop_path_schedule([depth], drop_path_rate)
        if embedding == 'simple':
            self.patch_embed: nn.Module = SimpleEmbed(in_channels, dim, patch_size)
        else:
            self.patch_embed = DeiTEmbed(in_channels, dim, patch_size, ceil_div(img_size, patch_size))
        self.prefix = PrefixTokens(dim, class_token, registers)
        self.drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList()
        for rate in drop_path[: self.out_indices[-1] + 1]:
            attn = build_mechanism(
                attention,
                dim=dim,
                num_heads=num_heads,
                stride=patch_size,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            mlp = FEED_FORWARD[feed_forward](dim, hidden_channels(dim, mlp_ratio), drop=drop_rate)
            self.blocks.append(Block(dim, attn, mlp, rate))
        if (class_token or registers) and not any(getattr(b.attn, 'takes_prefix', False) for b in self.blocks):
            raise ValueError(
                'class_token and registers need a block whose mechanism takes them, such as SelfAttention: leave them '
                'out, or choose another attention'
            )
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.settings = dict(
            mechanism_settings(attention, self.blocks[0].attn, 'attention'),
            num_heads=int(num_heads),
            patch_size=int(patch_size),
            feed_forward=feed_forward,
        )
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        *blocks, last = self.blocks
        return [[self.patch_embed, self.prefix, self.drop], *([block] for block in blocks), [last, self.norm]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, in_channels, H, W) -> per output, (B, C, ceil(H / patch_size), ceil(W / patch_size))."""
        self.check_images(x)
        outs = []
        prefix = self.prefix(x.shape[0])
        x = self.drop(self.patch_embed(x))
        if prefix is not None:
            prefix = self.drop(prefix)
        for i, block in enumerate(self.blocks):
            if prefix is None:
                x = self.run(block, x)
            else:
                x, prefix = self.run(block, x, prefix)
            if i in self.out_indices:
                outs.append(to_map(self.norm(x) if i == self.out_indices[-1] else x))
        return tuple(outs)

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """Leaves out blocks that are not built, and resizes the table of positions. A checkpoint of a backbone without
        a final norm leaves that norm untrained.

        A warm start takes a plain ViT of timm: all but the class token and what the mechanism has more.
        """
        tensors, dropped = self._from_plain_vit(state_dict) if warm_start else (dict(state_dict), [])
        dropped += take_out(tensors, *(f'blocks.{i}.' for i in range(len(self.blocks), self.num_stages)))
        fresh = []
        if isinstance(self.norm, nn.LayerNorm) and not any(name.startswith('norm.') for name in tensors):
            fresh = ['norm.weight', 'norm.bias']
        fit_tables(tensors, self.state_dict(), ['patch_embed.pos_embed'], _fitted)
        return Translation(tensors, dropped, fresh)

    def source(self, state_dict: dict[str, Tensor]) -> 'ViTFrame':
        """The plain ViT, with the table of positions that it was trained with."""
        side = math.isqrt(state_dict['pos_embed'].shape[1])
        return ViTFrame(embedding='deit', img_size=side * self._of_source['patch_size'], **self._of_source)

    def _from_plain_vit(self, state_dict: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Weights of a plain ViT of timm under the backbone's names, and the names of those that have no place.

        Raises:
            KeyError: naming a tensor that should be in the state dict.
            CheckpointError: naming a tensor of another shape that has to be rearranged.
        """
        left, start = dict(state_dict), {}

        def move(*modules: str) -> None:
            for name in (f'{module}.{kind}' for module in modules for kind in ('weight', 'bias')):
                start[name] = left.pop(name)

        embed = self.patch_embed
        if isinstance(embed, DeiTEmbed):
            move('patch_embed.proj')
            count = left['pos_embed'].shape[1] if left['pos_embed'].dim() == 3 else 1
            side = math.isqrt(count)
            tokens = min(count - side**2, 2)  # of the class and of distillation; they come first
            table = take(left, 'pos_embed', 1, tokens + side**2, embed.pos_embed.shape[1])
            start['patch_embed.pos_embed'] = table[:, tokens:].mT.unflatten(-1, (side, side))
        else:  # a linear layer on patches in another order, between two norms
            dim, p = embed.proj.out_features, embed.patch_size
            kernel = take(left, 'patch_embed.proj.weight', dim, self.in_channels, p, p)
            start['patch_embed.proj.weight'] = kernel.permute(0, 2, 3, 1).flatten(1)
            start['patch_embed.proj.bias'] = left.pop('patch_embed.proj.bias')
        for i, block in enumerate(self.blocks):
            move(*(f'blocks.{i}.{module}' for module in ('norm1', 'norm2', 'mlp.fc1', 'mlp.fc2')))
            if hasattr(block.attn, 'warm_start'):
                for name, value in block.attn.warm_start(left, f'blocks.{i}.attn.').items():
                    start[f'blocks.{i}.attn.{name}'] = value
        if isinstance(self.norm, nn.LayerNorm) and len(self.blocks) == self.num_stages:
            move('norm')
        projections = (f'blocks.{i}.attn.{name}.' for i in range(len(self.blocks)) for name in ('qkv', 'proj'))
        tokens = 'cls_token', 'dist_token', 'pos_embed'
        dropped = take_out(left, 'norm.', 'head', 'fc_norm.', 'pre_logits.', *tokens, *projections)
        return {**left, **start}, dropped


def _fitted(table: Tensor, shape: torch.Size) -> Tensor | None:
    """A table of positions (1, C, a, a) -> (1, C, b, b); None if it is not such a table."""
    is_table = table.dim() == 4 and table.shape == (*shape[:2], table.shape[3], table.shape[3])
    return interpolated(table, *shape[2:]) if is_table and table.numel() else None
