from mmengine.registry import MODELS
from mmpretrain.models.heads import LinearClsHead
from torch import Tensor, nn


@MODELS.register_module()
class NormLinearClsHead(LinearClsHead):
    """MMPretrain's linear head behind a LayerNorm: the head of the simple ViT, whose norm comes after pooling.

    ``norm`` and ``fc`` are ``linear_head.0`` and ``linear_head.1`` of the MSF release.

    Args:
        num_classes: number of classes.
        in_channels: channels C of the pooled map.
        init_cfg: by default, layers start as torch initialises them, like the release.
        kwargs: further arguments of ``LinearClsHead``.
    """

    def __init__(self, num_classes: int, in_channels: int, init_cfg: dict | list[dict] | None = None, **kwargs) -> None:
        super().__init__(num_classes, in_channels, init_cfg=init_cfg, **kwargs)
        self.norm = nn.LayerNorm(in_channels)

    def pre_logits(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Pooled maps, (B, C) each -> the last one, normed."""
        return self.norm(super().pre_logits(feats))
