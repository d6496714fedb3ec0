"""MSF-ViT, the Vision Transformer with mean-shift attention.

"Mean-Shift Feature Transformer", CVPR 2024
"""

import re

from mmengine.registry import MODELS
from torch import Tensor

from ..weights import Translation, take_out
from .vit import ViTFrame


@MODELS.register_module()
class MSFViT(ViTFrame):
    """MSF-ViT (section 3 and table 5): the simple ViT of "Better plain ViT baselines for ImageNet-1k", with mean-shift
    attention. It has no class token. Its position code is fixed and computed for the size of the image.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'ss', 'small', 'base', or a dict with ``embed_dim``, ``depth``, ``num_heads``.
        form: 'msf'; or 'residual', 'gauss' (table 3), 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`. 'plain' is the paper's own baseline ViT.
        sharing: which projections share a matrix (tables 1 and 2), see there; by default none.
        groups: groups of the input projections (table 4).
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as in other ViTs; in the paper they have none.
        landmarks: side of a grid of landmarks, with which attention takes linear time and is approximate, see there. It
            adds no weights, and takes those of the exact model. 0, the paper's model, is exact.
        kwargs: further arguments of :class:`mmattn.backbones.ViTFrame`, except ``attention``. Errors and warm starts
            are the same.

    By default layers start as torch initialises them, like the release.

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
    head_names = {'linear_head.0.': 'head.norm.', 'linear_head.1.': 'head.fc.'}

    def __init__(
        self,
        arch: str | dict = 'small',
        form: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        landmarks: int = 0,
        **kwargs,
    ) -> None:
        settings = dict(form=form, sharing=sharing, groups=groups, group_mode=group_mode, proj_bias=proj_bias)
        settings['landmarks'] = landmarks
        super().__init__(arch, dict(type='MeanShiftAttention', **settings), **kwargs)
        of_frame = {key: value for key, value in self.settings.items() if not key.startswith('attention')}
        self.settings = {**of_frame, 'landmarks': 0, **self.blocks[0].attn.settings}

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """A release has other names, a classifier ``linear_head`` and no final norm."""
        if warm_start:
            return super().from_release(state_dict, warm_start)
        tensors = dict(state_dict)
        for pattern, ours in RELEASED_NAMES.items():
            tensors = {re.sub(pattern, ours, name): value for name, value in tensors.items()}
        head = take_out(tensors, 'linear_head.')
        translation = super().from_release(tensors)
        translation.dropped += head
        return translation


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
