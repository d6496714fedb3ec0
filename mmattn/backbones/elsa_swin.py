"""ELSA-Swin, the Swin Transformer with enhanced local self-attention.

"ELSA: Enhanced Local Self-Attention for Vision Transformer", https://arxiv.org/abs/2112.12786
"""

import math
from collections.abc import Sequence
from numbers import Real

from mmengine.registry import MODELS
from torch import Tensor

from ..layers.checks import check_whole, stage_numbers
from ..weights import Translation
from .swin import SwinFrame


@MODELS.register_module()
class ELSASwin(SwinFrame):
    r"""ELSA-Swin (section 6 and table 6): ELSA blocks in stages 0 to 2, shifted-window attention in stage 3.

    One layout throughout: (B, H, W, C) tokens.

    Args:
        arch: 'tiny', 'small', 'base', or a dict with ``embed_dim``, ``depths``, ``num_heads``, ``group_width``.
        kernel_size: side of the ELSA neighbourhood, odd.
        dilation: distance of ELSA neighbours, in pixels of the map.
        group_width: channels per group of the Hadamard convolution; by default that of the arch.
        lam: :math:`\lambda` of equation 8, a whole number, because the multiplier may be negative. The released models
            have 0: no ghost multiplier.
        gamma: :math:`\gamma` of equation 8. ``lam=0, gamma=0`` is Hadamard attention without ghost head (table 4).
        elsa_stages: stages with ELSA blocks; the others have window attention. () is the base model of table 4.
        shift_small_maps: whether windows are shifted along an axis where the map fits into one window, as the last map
            of a 224 x 224 image does. Released detectors and segmentors shift there, classifiers do not.

    Further arguments, and errors: see :class:`mmattn.backbones.SwinFrame`.

    Example:
        >>> import torch
        >>> from mmattn.backbones import ELSASwin
        >>> maps = ELSASwin(arch='tiny').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 17, 25), (1, 192, 9, 13), (1, 384, 5, 7), (1, 768, 3, 4)]
    """

    arch_zoo = {
        'tiny': dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), group_width=4),
        'small': dict(embed_dim=96, depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24), group_width=8),
        'base': dict(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), group_width=8),
    }
    layouts = {'an ELSA-Swin': r'layers\.\d+\.blocks\.\d+\.attn\.ghost_head'}

    def __init__(
        self,
        arch: str | dict = 'tiny',
        kernel_size: int = 7,
        dilation: int = 1,
        group_width: int | None = None,
        lam: float = 0.0,
        gamma: float = 1.0,
        elsa_stages: Sequence[int] = (0, 1, 2),
        window_size: int = 7,
        shift_small_maps: bool = True,
        mlp_ratio: float = 4.0,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
        in_channels: int = 3,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list[dict] | None = dict(type='TruncNormal', layer='Linear', std=0.02),
    ) -> None:
        arch = self.resolve_arch(arch)
        group_width = arch['group_width'] if group_width is None else group_width
        elsa_stages = stage_numbers('elsa_stages', elsa_stages, len(arch['depths']))
        _check(group_width, kernel_size, dilation, lam, gamma)
        elsa = dict(
            type='ELSA', kernel_size=kernel_size, dilation=dilation, group_width=group_width, lam=lam, gamma=gamma
        )
        super().__init__(
            arch,
            [elsa if i in elsa_stages else dict(type='WindowAttention') for i in range(len(arch['depths']))],
            window_size=window_size,
            shift_small_maps=shift_small_maps,
            mlp_ratio=mlp_ratio,
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
            in_channels=in_channels,
            out_indices=out_indices,
            frozen_stages=frozen_stages,
            with_cp=with_cp,
            init_cfg=init_cfg,
        )
        self.settings = dict(dilation=int(dilation), lam=float(lam), gamma=float(gamma))

    def from_release(self, state_dict: dict[str, Tensor], warm_start: bool = False) -> Translation:
        """The release also stores ``relative_id``, an index that is not needed here."""
        computed = [name for name in state_dict if name.endswith('.relative_id')]
        stored = {name: value for name, value in state_dict.items() if name not in computed}
        translation = super().from_release(stored, warm_start)
        translation.dropped += computed
        return translation


def _check(group_width: int, kernel_size: int, dilation: int, lam: float, gamma: float) -> None:
    for name, value in (('kernel_size', kernel_size), ('dilation', dilation), ('group_width', group_width)):
        check_whole(name, value)
    if kernel_size % 2 == 0:
        raise ValueError(f'kernel_size must be odd, not {kernel_size}')
    if not isinstance(lam, Real) or lam < 0 or lam % 1 != 0:
        raise ValueError(
            f'lam must be a whole number >= 0, not {lam!r}: the multiplier may be negative and has no other powers'
        )
    if not isinstance(gamma, Real) or not math.isfinite(gamma):
        raise ValueError(f'gamma must be a finite number, not {gamma!r}')
