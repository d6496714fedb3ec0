"""MSF-ViT, the Vision Transformer with mean-shift attention.

"Mean-Shift Feature Transformer", CVPR 2024
"""

from mmengine.registry import MODELS

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
        arguments = dict(form=form, sharing=sharing, groups=groups, group_mode=group_mode, proj_bias=proj_bias)
        arguments['landmarks'] = landmarks
        super().__init__(arch, dict(type='MeanShiftAttention', **arguments), **kwargs)
        # The names that checkpoints have. Landmarks are noted even where there are none, because they may change.
        of_frame = {key: value for key, value in self.settings.items() if not key.startswith('attention')}
        attn = self.blocks[0].attn
        self.settings = dict(
            of_frame, **{'landmarks': 0, **attn.settings}, changes_with_images=attn.changes_with_images
        )
