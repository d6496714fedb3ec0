from mmengine.registry import MODELS
from mmpretrain.models.heads import LinearClsHead
from torch import Tensor, nn

from ..arguments import check_whole


@MODELS.register_module()
class NormLinearClsHead(LinearClsHead):
    """LayerNorm, then MMPretrain's linear head: MSF's ViT has its last norm after pooling.

    ``norm`` and ``fc`` are ``linear_head.0`` and ``linear_head.1`` of MSF's released code.

    Args:
        num_classes: number of classes.
        in_channels: channels C of the pooled map.
        init_cfg: by default, layers start as torch initialises them, as in the released code.
        kwargs: further arguments of ``LinearClsHead``.

    Raises:
        ValueError: if ``in_channels`` is not a whole number of at least 1.
    """

    def __init__(self, num_classes: int, in_channels: int, init_cfg: dict | list[dict] | None = None, **kwargs) -> None:
        check_whole('in_channels', in_channels)
        super().__init__(num_classes, in_channels, init_cfg=init_cfg, **kwargs)
        self.norm = nn.LayerNorm(in_channels)

    def pre_logits(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Pooled maps, (B, C) each -> the last one, normalised, (B, C)."""
        return self.norm(super().pre_logits(feats))
