"""MSF-Swin, the Swin Transformer with mean-shift attention in its windows.

"Mean-Shift Feature Transformer", CVPR 2024
"""

from mmengine.registry import MODELS

from .swin import SwinFrame


@MODELS.register_module()
class MSFSwin(SwinFrame):
    """MSF-Swin (section 3.2 and table 5): Swin Transformer whose (shifted-)window attention is mean-shift attention.

    The paper does not mention the relative position bias. Here it is Swin's: it is added to the logits.

    Args:
        arch: 'tiny', 'small', or a dict with ``embed_dim``, ``depths``, ``num_heads``.
        form: 'msf'; or 'residual', 'gauss', 'plain' for comparison, see
            :class:`mmattn.layers.MeanShiftAttention`. 'plain' is Swin Transformer itself.
        sharing: which projections share a matrix, see there; by default none.
        groups: groups of the input projections.
        group_mode: 'interleaved' or 'block'.
        proj_bias: whether the projections have biases, as in Swin; in the paper they have none.
        kwargs: further arguments of :class:`mmattn.backbones.SwinFrame`, except ``attention``. Errors are the same.

    ``init_cfg=dict(type='Pretrained', checkpoint=..., warm_start=True)`` starts with the weights of a Swin Transformer,
    in each layout that :class:`mmattn.backbones.SwinFrame` knows. With ``proj_bias=True`` it takes the biases, too, and
    nearly computes what the Swin Transformer computes. With ``form='plain', proj_bias=True`` the
    backbone is a Swin Transformer and takes them strictly, without ``warm_start``.

    Example:
        >>> import torch
        >>> from mmattn.backbones import MSFSwin
        >>> maps = MSFSwin(arch='tiny').eval()(torch.zeros(1, 3, 65, 97))
        >>> [tuple(m.shape) for m in maps]
        [(1, 96, 17, 25), (1, 192, 9, 13), (1, 384, 5, 7), (1, 768, 3, 4)]
    """

    arch_zoo = {name: SwinFrame.arch_zoo[name] for name in ('tiny', 'small')}

    def __init__(
        self,
        arch: str | dict = 'tiny',
        form: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        **kwargs,
    ) -> None:
        arguments = dict(form=form, sharing=sharing, groups=groups, group_mode=group_mode, proj_bias=proj_bias)
        super().__init__(arch, dict(type='MeanShiftWindow', **arguments), **kwargs)
        self.settings = self.layers[0].blocks[0].attn.settings
