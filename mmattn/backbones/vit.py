"""The frame of a plain Vision Transformer, whose blocks take any token mixer in the place of attention."""

from collections.abc import Callable, Iterator, Sequence

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..arguments import check_choice, check_finite, check_flags, check_heads, check_rates, check_whole, hidden_channels
from ..layers import FEED_FORWARD, Attention, Block, build_token_mixer, token_mixer_settings, token_mixers_by_stage
from ..ops.any_size import ceil_div
from . import vit_weights
from .base import Backbone
from .patch_embed import DeiTEmbed, PatchEmbed, PrefixTokens, SimpleEmbed
from .stages import drop_path_schedule


def swiglu(dim: int, hidden_dim: int, drop: float = 0.0) -> nn.Module:
    """timm's ``SwiGLU``, with the hidden channels rounded up to a multiple of 8, as DINOv3 has them."""
    from timm.layers import SwiGLU  # timm takes seconds

    return SwiGLU(dim, hidden_dim, drop=drop, align_to=8)


FEED_FORWARDS: dict[str, Callable[..., nn.Module]] = {**FEED_FORWARD, 'swiglu': swiglu}


@MODELS.register_module()
class ViTFrame(Backbone):
    """Patch embedding and pre-norm blocks of one resolution.

    One layout throughout: (B, H, W, C) tokens. A class token and registers stand beside them, (B, P, C), for the
    token mixers that take them, as plain attention (``SelfAttention``) does. They are in no output.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', 'large', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        attention: the token mixer of the blocks, see :func:`mmattn.layers.build_token_mixer`, or a list with that of
            each block, which is a stage here. None, anywhere: plain attention, ``SelfAttention``.
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
        rope: base of the rotary position embedding in token mixers that have one, 100 in DINOv3; None: there is none.
            See :func:`mmattn.ops.rotary.rotation`. ``RankAugmentedAttention`` has positions in pixels of the map.
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
    weights = vit_weights

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
        token_mixers = [cfg for (cfg,) in token_mixers_by_stage(attention, [1] * depth, [plain] * depth)]
        check_choice('feed_forward', feed_forward, FEED_FORWARDS)
        check_choice('embedding', embedding, ('simple', 'deit', 'patches'))
        check_finite('norm_eps', norm_eps, 0)
        if layer_scale is not None:
            check_finite('layer_scale', layer_scale)
        if not isinstance(final_norm, bool) and final_norm != 'all':
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

        self.arch, self.rope, self.mlp_ratio, self.final_norm = arch, rope, mlp_ratio, final_norm
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
        for cfg, rate in zip(token_mixers, drop_path[: self.num_built]):
            attn = build_token_mixer(
                cfg,
                dim=dim,
                num_heads=num_heads,
                stride=patch_size,
                rope=rope,
                attn_drop_rate=attn_drop_rate,
                drop_rate=drop_rate,
            )
            dilation = cfg.get('dilation')  # Each block is a stage of its own, in which several would have no turns.
            if isinstance(dilation, (list, tuple)) and len(dilation) > 1 and 'block' not in cfg:
                raise ValueError(
                    f'attention: dilation must be one number, not {dilation!r}: give a list of {depth} token mixers'
                )
            mlp = FEED_FORWARDS[feed_forward](dim, hidden_channels(dim, mlp_ratio), drop=drop_rate)
            self.blocks.append(Block(dim, attn, mlp, rate, norm_eps, layer_scale))
        if (class_token or registers) and not any(getattr(b.attn, 'takes_prefix', False) for b in self.blocks):
            raise ValueError(
                'class_token and registers need a block whose token mixer takes them, such as SelfAttention: leave '
                'them out, or choose another attention'
            )
        self.norm = nn.LayerNorm(dim, norm_eps) if final_norm else nn.Identity()
        self.settings = dict(
            num_heads=int(num_heads), patch_size=int(patch_size), feed_forward=feed_forward, norm_eps=float(norm_eps)
        )
        if final_norm:
            self.settings['final_norm'] = final_norm
        alike = all(cfg == token_mixers[0] for cfg in token_mixers)
        for i, block in enumerate(self.blocks[:1] if alike else self.blocks):
            place = 'attention' if alike else f'attention[{i}]'
            self.settings |= token_mixer_settings(token_mixers[i : i + 1], [block.attn], place)
        self.train()

    def stage_modules(self) -> list[list[nn.Module]]:
        *blocks, last = self.blocks
        return [[self.patch_embed, self.prefix, self.drop], *([block] for block in blocks), [last, self.norm]]

    def output_norm(self, stage: int) -> str:
        return 'norm' if self.final_norm == 'all' or stage == self.out_indices[-1] else ''

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
