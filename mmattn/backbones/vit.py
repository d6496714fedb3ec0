"""The frame of a plain Vision Transformer, whose blocks take any mechanism in the place of attention."""

import math
import re
from collections.abc import Callable, Iterator, Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_choice, check_finite, check_flags, check_heads, check_rates, check_whole, hidden_channels
from ..errors import CheckpointError
from ..layers import (
    FEED_FORWARD,
    Attention,
    Block,
    SelfAttention,
    build_mechanism,
    mechanism_settings,
    mechanisms_by_stage,
)
from ..layers.any_size import ceil_div
from ..weights import Translation, take, take_out
from .base import Backbone, drop_path_schedule
from .patch_embed import DeiTEmbed, PatchEmbed, PrefixTokens, SimpleEmbed, fit_tables, resampled
from .vit_layouts import vit_layout

#: the frame's names of positions and prefix tokens, which other frames may lack
OPTIONAL = 'patch_embed.pos_embed', 'prefix.cls_token', 'prefix.reg_token'


def swiglu(dim: int, hidden_dim: int, drop: float = 0.0) -> nn.Module:
    """timm's ``SwiGLU``, with the hidden channels rounded up to a multiple of 8, as DINOv3 has them."""
    from timm.layers import SwiGLU  # timm takes seconds

    return SwiGLU(dim, hidden_dim, drop=drop, align_to=8)


FEED_FORWARDS: dict[str, Callable[..., nn.Module]] = {**FEED_FORWARD, 'swiglu': swiglu}


@MODELS.register_module()
class ViTFrame(Backbone):
    """Patch embedding and pre-norm blocks of one resolution.

    One layout throughout: (B, H, W, C) tokens. A class token and registers stand beside them, (B, P, C), for the
    mechanisms that take them, as plain attention (``SelfAttention``) does. They are in no output.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', 'large', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        attention: the mechanism of the blocks, see :func:`mmattn.layers.build_mechanism`, or a list with that of each
            block, which is a stage here. None, anywhere: plain attention, ``SelfAttention``.
        feed_forward: 'plain', 'conv' or 'detail', the rows of table 9 of "Shunted Self-Attention"; or 'swiglu' ("GLU
            Variants Improve Transformer").
        embedding: 'simple', as "Better plain ViT baselines for ImageNet-1k" has it: a linear layer on patches between
            two norms, and a fixed position code. 'deit': a convolution, and a learned table of positions. 'patches': a
            convolution without positions.
        img_size: side of the images, in pixels, that the learned table of positions is for. It is interpolated for
            other sizes.
        patch_size: side of the patches, in pixels. If it does not divide an image, the image is padded with zeros at
            the bottom and the right.
        class_token: whether there is a class token.
        registers: number of registers ("Vision Transformers Need Registers").
        rope: base of the rotary position embedding in mechanisms that have one, 100 in DINOv3; None: there is none. See
            :func:`mmattn.ops.rotary.rotation`.
        qkv_bias: whether the projections to query, key and value have biases where ``attention`` is None.
        layer_scale: what the factors of LayerScale start at; None: there are none.
        norm_eps: eps of the norms of blocks and outputs.
        mlp_ratio: hidden channels of the feed-forward layers divided by the channels of the embedding.
        final_norm: whether the last output has a LayerNorm; 'all': all outputs have it, the same one. Without it,
            outputs are the plain sums of residuals.
        drop_rate: dropout of the embedding, attention output and feed-forward layers.
        attn_drop_rate: dropout of attention weights.
        out_indices: blocks whose maps are returned, ascending, counted from 0; by default the last one.
        frozen_stages: freezes the patch embedding (0) and that many blocks.

    Further arguments, and errors: see :class:`mmattn.backbones.base.Backbone`.
    A frame of plain attention takes the weights of timm's ViT, DeiT, DINOv2 and DINOv3, and gives their maps: see
    :class:`mmattn.backbones.DINOViT`. ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts any
    other frame with them.

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
        'large': dict(embed_dim=1024, depth=24, num_heads=16),
    }
    warm_start_from = 'a ViT or DeiT'
    layouts = {'a ViT or DeiT': r'(?<!\d\.)blocks\.\d+\.attn\.qkv\.|layers\.\d+\.attn\.attn\.in_proj_weight'}

    def __init__(
        self,
        arch: str | dict = 'small',
        attention: Attention = None,
        feed_forward: str = 'plain',
        embedding: str = 'simple',
        img_size: int = 224,
        patch_size: int = 16,
        class_token: bool = False,
        registers: int = 0,
        rope: float | None = None,
        qkv_bias: bool = True,
        layer_scale: float | None = None,
        norm_eps: float = 1e-5,
        mlp_ratio: float = 4.0,
        final_norm: bool | str = False,
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
        check_flags(qkv_bias=qkv_bias, class_token=class_token)
        plain = dict(type='SelfAttention', qkv_bias=qkv_bias)
        mechanisms = [cfg for (cfg,) in mechanisms_by_stage(attention, [1] * depth, [plain] * depth)]
        check_choice('feed_forward', feed_forward, FEED_FORWARDS)
        check_choice('embedding', embedding, ('simple', 'deit', 'patches'))
        check_finite('norm_eps', norm_eps, 0)
        if layer_scale is not None:
            check_finite('layer_scale', layer_scale)
        if final_norm not in (True, False, 'all'):
            raise ValueError(f"final_norm must be True, False or 'all', not {final_norm!r}")
        check_whole('patch_size', patch_size)
        check_whole('img_size', img_size)
        check_whole('registers', registers, 0)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        super().__init__(
            [dim] * depth,
            (depth - 1,) if out_indices is None else out_indices,
            in_channels=in_channels,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
            strides=[patch_size] * depth,
        )

        self._of_source = dict(
            arch={key: arch[key] for key in ViTFrame.arch_zoo['tiny']},
            patch_size=patch_size,
            rope=rope,
            norm_eps=norm_eps,
            mlp_ratio=mlp_ratio,
            final_norm=final_norm,
            in_channels=in_channels,
            out_indices=self.out_indices,
        )
        (drop_path,) = drop_path_schedule([depth], drop_path_rate)
        if embedding == 'simple':
            self.patch_embed: nn.Module = SimpleEmbed(in_channels, dim, patch_size)
        elif embedding == 'patches':
            self.patch_embed = PatchEmbed(in_channels, dim, patch_size, norm=False)
        else:
            self.patch_embed = DeiTEmbed(in_channels, dim, patch_size, ceil_div(img_size, patch_size))
        self.prefix = PrefixTokens(dim, class_token, registers)
        self.drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList()
        for cfg, rate in zip(mechanisms, drop_path[: self.num_built]):
            attn = build_mechanism(
                cfg,
                dim=dim,
                num_heads=num_heads,
                stride=patch_size,
                rope=rope,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            dilation = cfg.get('dilation')
            if isinstance(dilation, (list, tuple)) and len(dilation) > 1 and 'block' not in cfg:
                raise ValueError(
                    f'attention: dilation must be one number, not {dilation!r}: give a list of {depth} mechanisms'
                )
            mlp = FEED_FORWARDS[feed_forward](dim, hidden_channels(dim, mlp_ratio), drop=drop_rate)
            self.blocks.append(Block(dim, attn, mlp, rate, norm_eps, layer_scale))
        if (class_token or registers) and not any(getattr(b.attn, 'takes_prefix', False) for b in self.blocks):
            raise ValueError(
                'class_token and registers need a block whose mechanism takes them, such as SelfAttention: leave them '
                'out, or choose another attention'
            )
        self.norm = nn.LayerNorm(dim, norm_eps) if final_norm else nn.Identity()
        self.norms_all = final_norm == 'all'
        self.settings = dict(
            num_heads=int(num_heads), patch_size=int(patch_size), feed_forward=feed_forward, norm_eps=float(norm_eps)
        )
        if final_norm:
            self.settings['final_norm'] = final_norm
        alike = all(cfg == mechanisms[0] for cfg in mechanisms)
        for i, block in enumerate(self.blocks[:1] if alike else self.blocks):
            place = 'attention' if alike else f'attention[{i}]'
            self.settings |= mechanism_settings(mechanisms[i : i + 1], [block.attn], place)
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        *blocks, last = self.blocks
        return [[self.patch_embed, self.prefix, self.drop], *([block] for block in blocks), [last, self.norm]]

    def output_norm(self, stage: int) -> str:
        return 'norm' if self.norms_all or stage == self.out_indices[-1] else ''

    def stage_outputs(self, x: Tensor) -> Iterator[Tensor]:
        self.check_images(x)
        prefix = self.prefix(x.shape[0])
        x = self.drop(self.patch_embed(x))
        if prefix is not None:
            prefix = self.drop(prefix)
        for block in self.blocks:
            if prefix is None:
                x = self.run(block, x)
            else:
                x, prefix = self.run(block, x, prefix)
            yield x

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """Takes a plain ViT of timm, or a DINOv2 or DINOv3 of Meta, see :func:`vit_layout`.

        It leaves out blocks that are not built, and the final norm if this backbone has none, and resizes the table of
        positions. A checkpoint of a backbone without a final norm leaves that norm untrained.

        A warm start takes all but what the frame has no place for: prefix tokens, positions, and what mechanisms leave
        of the projections of attention. Tensors that only the mechanisms have keep their initial values.
        """
        tensors, dropped = vit_layout(state_dict)
        # Frames that were written before had the names of mean-shift attention.
        plain = '|'.join(str(i) for i, block in enumerate(self.blocks) if type(block.attn) is SelfAttention) or '-'
        for old, new in (('pre_proj', 'qkv'), ('post_proj', 'proj')):
            pattern = rf'^(blocks\.({plain})\.attn\.){old}\.'
            tensors = {re.sub(pattern, rf'\1{new}.', name): value for name, value in tensors.items()}
        dropped += take_out(tensors, *(f'blocks.{i}.' for i in range(len(self.blocks), self.num_stages)))
        if isinstance(self.norm, nn.Identity):
            dropped += take_out(tensors, 'norm.')
        if isinstance(self.patch_embed, DeiTEmbed) and 'pos_embed' in tensors:
            table = tensors['pos_embed']
            side = math.isqrt(table.shape[1]) if table.dim() == 3 else self.patch_embed.pos_embed.shape[-1]
            table = take(tensors, 'pos_embed', 1, side**2, self.patch_embed.pos_embed.shape[1])
            tensors['patch_embed.pos_embed'] = table.mT.unflatten(-1, (side, side))
        for name, token in (('cls_token', self.prefix.cls_token), ('reg_token', self.prefix.reg_token)):
            if name in tensors and token is not None:
                tensors[f'prefix.{name}'] = tensors.pop(name)
            elif name in tensors and not warm_start and all(type(b.attn) is SelfAttention for b in self.blocks):
                raise CheckpointError(
                    f'the weights have {name}, of shape {tuple(tensors[name].shape)}: give the backbone class_token '
                    'and registers, or leave them out by warm_start=True beside the checkpoint'
                )
        dropped += self._without_zero_biases(tensors)
        if warm_start:
            dropped += self._start(tensors)
        fresh = []
        if isinstance(self.norm, nn.LayerNorm) and not any(name.startswith('norm.') for name in tensors):
            fresh = ['norm.weight', 'norm.bias']
        fit_tables(tensors, self.state_dict(), ['patch_embed.pos_embed'], _fitted)
        return Translation(tensors, dropped, fresh)

    def source(self, state_dict: dict[str, Tensor]) -> 'ViTFrame':
        """The plain ViT, with the tokens and the table of positions that its weights have. They may be those of a
        ``ViTFrame``."""
        tensors = {name.removeprefix('prefix.'): value for name, value in vit_layout(state_dict)[0].items()}
        # Loading refuses shapes without the size that is looked for.
        sizes = {name: (*value.shape, 0, 0) for name, value in tensors.items()}
        side = None
        if 'pos_embed' in tensors:
            side = math.isqrt(sizes['pos_embed'][1])
        elif 'patch_embed.pos_embed' in tensors:
            side = tensors['patch_embed.pos_embed'].shape[-1:].numel()
        feed_forward = 'swiglu' if 'blocks.0.mlp.fc1_g.weight' in tensors else 'plain'
        if 'blocks.0.mlp.dwconv.weight' in tensors:  # of a frame with this kind of layers
            feed_forward = self.settings['feed_forward']
        return ViTFrame(
            embedding='deit' if side else 'patches',
            img_size=(side or 1) * self._of_source['patch_size'],
            class_token='cls_token' in tensors,
            registers=sizes['reg_token'][1] if 'reg_token' in tensors else 0,
            qkv_bias='blocks.0.attn.qkv.bias' in tensors,
            layer_scale=1.0 if 'blocks.0.ls1.gamma' in tensors else None,
            feed_forward=feed_forward,
            **self._of_source,
        )

    def _without_zero_biases(self, tensors: dict[str, Tensor]) -> list[str]:
        """Remove biases of zero where plain attention has none, as in some files of DINOv3; returns their names."""
        names = [
            f'blocks.{i}.attn.qkv.bias'
            for i, block in enumerate(self.blocks)
            if type(block.attn) is SelfAttention and block.attn.qkv.bias is None
        ]
        for name in names:
            if name in tensors and tensors[name].any():
                raise CheckpointError(
                    f'the weights have {name}, and it is not zero: give qkv_bias=True to the backbone, and to a '
                    'mechanism SelfAttention'
                )
        return take_out(tensors, *names)

    def _start(self, tensors: dict[str, Tensor]) -> list[str]:
        """Rearrange the weights of a plain ViT for a warm start; returns the names of those that have no place.

        Raises:
            KeyError: naming a tensor that should be in the state dict.
            CheckpointError: naming a tensor of another shape that has to be rearranged.
        """
        embed, dropped = self.patch_embed, []
        if isinstance(embed, SimpleEmbed):  # a linear layer on patches in another order, between two norms
            dim, p = embed.proj.out_features, embed.patch_size
            kernel = take(tensors, 'patch_embed.proj.weight', dim, self.in_channels, p, p)
            tensors['patch_embed.proj.weight'] = kernel.permute(0, 2, 3, 1).flatten(1)
        for i, block in enumerate(self.blocks):
            if type(block.attn) is SelfAttention:
                continue
            prefix, start = f'blocks.{i}.attn.', {}
            if hasattr(block.attn, 'warm_start'):
                weight, bias = tensors[f'{prefix}qkv.weight'], f'{prefix}qkv.bias'
                tensors.setdefault(bias, weight.new_zeros(weight.shape[:1]))
                start = block.attn.warm_start(tensors, prefix)
            dropped += take_out(tensors, prefix)
            tensors.update((prefix + name, value) for name, value in start.items())
        own = self.state_dict()
        dropped += take_out(
            tensors, 'pos_embed', 'cls_token', 'reg_token', *(name for name in OPTIONAL if name not in own)
        )
        mixed = '|'.join(str(i) for i, block in enumerate(self.blocks) if type(block.attn) is not SelfAttention)
        optional = rf'norm\.|patch_embed\.(patch_)?norm\.|blocks\.\d+\.mlp\.dwconv\.|blocks\.({mixed or "-"})\.attn\.'
        optional += r'|blocks\.\d+\.attn\.ghost\.'
        for name in own:
            if name not in tensors and not re.match(optional, name):
                raise KeyError(name.removeprefix('prefix.').replace('patch_embed.pos_embed', 'pos_embed'))
        return dropped


def _fitted(table: Tensor, shape: torch.Size) -> Tensor | None:
    """A table of positions (1, C, a, a) -> (1, C, b, b); None if it is not such a table."""
    is_table = table.dim() == 4 and table.shape == (*shape[:2], table.shape[3], table.shape[3])
    return resampled(table, *shape[2:]) if is_table and table.numel() else None
