"""ELSA-Swin, the Swin Transformer with enhanced local self-attention.

"ELSA: Enhanced Local Self-Attention for Vision Transformer", https://arxiv.org/abs/2112.12786
"""

from collections.abc import Sequence

from mmengine.registry import MODELS

from ..arguments import stage_numbers
from ..layers.elsa import check_elsa
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
        kwargs: further arguments of :class:`mmattn.backbones.SwinFrame`, except ``attention``. Errors are the same.

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

    def __init__(
        self,
        arch: str | dict = 'tiny',
        kernel_size: int = 7,
        dilation: int = 1,
        group_width: int | None = None,
        lam: float = 0.0,
        gamma: float = 1.0,
        elsa_stages: Sequence[int] = (0, 1, 2),
        **kwargs,
    ) -> None:
        arch = self.resolve_arch(arch)
        group_width = arch['group_width'] if group_width is None else group_width
        elsa_stages = stage_numbers('elsa_stages', elsa_stages, len(arch['depths']))
        check_elsa(kernel_size, dilation, group_width, lam, gamma)
        elsa = dict(
            type='ELSA', kernel_size=kernel_size, dilation=dilation, group_width=group_width, lam=lam, gamma=gamma
        )
        attention = [elsa if i in elsa_stages else dict(type='WindowAttention') for i in range(len(arch['depths']))]
        super().__init__(arch, attention, **kwargs)
        self.settings = dict(dilation=int(dilation), lam=float(lam), gamma=float(gamma))
