"""MSF-ViT, the Vision Transformer with mean-shift attention.

"Mean-Shift Feature Transformer", CVPR 2024
"""

import re
from collections.abc import Sequence

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..weights import Translation, take, take_out
from .vit import ViTFrame


@MODELS.register_module()
class MSFViT(ViTFrame):
    """MSF-ViT (section 3 and table 5): the simple ViT of "Better plain ViT baselines for ImageNet-1k", with mean-shift
    attention. It has no class token. Its position code is fixed and computed for the size of the image.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        attention: 'msf'; or 'residual', 'gauss' (table 3), 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`. 'plain' is the paper's own baseline ViT.
        sharing: which projections share a matrix (tables 1 and 2), see there; by default none.
        groups: groups of the input projections (table 4).
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as in other ViTs; in the paper they have none.

    Further arguments, and errors: see :class:`mmattn.backbones.ViTFrame`. By default layers start as torch initialises
    them, like the release. ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts with the
    weights of a plain ViT of timm.

    Example:
        >>> import torch
        >>> from mmattn.backbones import MSFViT
        >>> maps = MSFViT(arch='small', out_indices=(2, 5, 8, 11)).eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 384, 5, 7), (1, 384, 5, 7), (1, 384, 5, 7), (1, 384, 5, 7)]
    """

    layouts = {
        'a mean-shift (MSF) ViT': r'transformer\.layers\.\d+\.0\.to_qkvp\.|(?<!\d\.)blocks\.\d+\.attn\.pre_proj\.'
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
        mechanism = dict(
            type='MeanShiftAttention',
            attention=attention,
            sharing=sharing,
            groups=groups,
            group_mode=group_mode,
            proj_bias=proj_bias,
        )
        super().__init__(
            arch,
            mechanism,
            patch_size=patch_size,
            mlp_ratio=mlp_ratio,
            final_norm=final_norm,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            in_channels=in_channels,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
        self.settings = dict(
            self.blocks[0].attn.settings, num_heads=self.settings['num_heads'], patch_size=int(patch_size)
        )

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
        translation = super().from_release({**tensors, **start})
        translation.dropped += dropped
        return translation

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
