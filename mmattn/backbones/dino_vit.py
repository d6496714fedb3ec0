"""The Vision Transformers of DINOv2 and DINOv3.

"DINOv2: Learning Robust Visual Features without Supervision", https://arxiv.org/abs/2304.07193;
"Vision Transformers Need Registers", https://arxiv.org/abs/2309.16588;
"DINOv3", https://arxiv.org/abs/2508.10104
"""

from mmengine.registry import MODELS

from ..layers import Attention
from .vit import ViTFrame

#: version -> what its models share
VERSIONS = {
    2: dict(patch_size=14, embedding='deit', img_size=518, norm_eps=1e-6),
    3: dict(patch_size=16, embedding='patches', rope=100.0, qkv_bias=False, norm_eps=1e-5),
}
SMALL, BASE, LARGE = (
    dict(embed_dim=dim, depth=depth, num_heads=dim // 64) for dim, depth in ((384, 12), (768, 12), (1024, 24))
)


@MODELS.register_module()
class DINOViT(ViTFrame):
    """The ViTs of DINOv2, with and without registers, and of DINOv3: :class:`ViTFrame` with their arguments.

    It takes the weights of timm's model of the same name, and Meta's own. Maps are those of timm's
    ``forward_intermediates(norm=True)``, for images of any size; sides that are not a multiple of the patch are padded
    as with ``dynamic_img_pad=True``. Meta's code interpolates the positions of DINOv2 with an offset, and rounds
    the periods of DINOv3 to bfloat16.

    Args:
        arch: name of timm's model, or a dict with the keys of ``arch_zoo``: ``version`` of DINO, ``swiglu`` (1: the
            feed-forward layers are SwiGLU) and others.
        attention: token mixers of the blocks; see :class:`ViTFrame`. By default plain attention.
        final_norm: see there.
        kwargs: further arguments of :class:`ViTFrame`.

    Example:
        >>> import torch
        >>> from mmattn.backbones import DINOViT
        >>> backbone = DINOViT(arch='vit_small_patch16_dinov3', out_indices=(2, 5, 8, 11)).eval()
        >>> [tuple(m.shape) for m in backbone(torch.zeros(1, 3, 64, 97))]
        [(1, 384, 4, 7), (1, 384, 4, 7), (1, 384, 4, 7), (1, 384, 4, 7)]
    """

    arch_zoo = {
        'vit_small_patch14_dinov2': dict(SMALL, version=2, registers=0, swiglu=0),
        'vit_base_patch14_dinov2': dict(BASE, version=2, registers=0, swiglu=0),
        'vit_large_patch14_dinov2': dict(LARGE, version=2, registers=0, swiglu=0),
        'vit_small_patch14_reg4_dinov2': dict(SMALL, version=2, registers=4, swiglu=0),
        'vit_base_patch14_reg4_dinov2': dict(BASE, version=2, registers=4, swiglu=0),
        'vit_large_patch14_reg4_dinov2': dict(LARGE, version=2, registers=4, swiglu=0),
        'vit_small_patch16_dinov3': dict(SMALL, version=3, registers=4, swiglu=0),
        'vit_small_plus_patch16_dinov3': dict(SMALL, version=3, registers=4, swiglu=1),
        'vit_base_patch16_dinov3': dict(BASE, version=3, registers=4, swiglu=0),
        'vit_large_patch16_dinov3': dict(LARGE, version=3, registers=4, swiglu=0),
    }

    def __init__(
        self,
        arch: str | dict = 'vit_base_patch16_dinov3',
        attention: Attention = None,
        final_norm: bool | str = 'all',
        **kwargs,
    ) -> None:
        arch = self.resolve_arch(arch)
        for key, values in (('version', [*VERSIONS]), ('swiglu', [0, 1])):
            if arch[key] not in values:
                raise ValueError(f'arch: {key} must be {values[0]} or {values[1]}, not {arch[key]}')
        arguments = dict(
            VERSIONS[arch['version']],
            class_token=True,
            registers=arch['registers'],
            feed_forward='swiglu' if arch['swiglu'] else 'plain',
            layer_scale=1e-5,
        )
        super().__init__(arch, attention, final_norm=final_norm, **{**arguments, **kwargs})
