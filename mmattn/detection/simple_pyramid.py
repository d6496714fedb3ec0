from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.registry import MODELS
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from ..arguments import check_whole
from ..errors import InputError


@MODELS.register_module()
class SimpleFeaturePyramid(nn.Module):
    """The simple feature pyramid of ViTDet: maps of several strides from the last map of a plain ViT ("Exploring Plain
    Vision Transformer Backbones for Object Detection", section 3). It computes what ``SimpleFPN`` of MMDetection's
    projects/ViTDet computes, which is not among MMDetection's installed modules.

    The map is brought to each scale: by deconvolutions of stride 2, as it is, or by max pooling. A 1 x 1 and a 3 x 3
    convolution follow, each with a LayerNorm over the channels.

    Args:
        in_channels: channels of the backbone's last map.
        out_channels: channels of all maps.
        scales: of the maps, from the largest to the smallest: 4, 2, 1 or 0.5. With a ViT of stride 16, the default is
            of strides 4, 8, 16 and 32.
        num_outs: number of maps. Further ones have every second pixel of the map before.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self, in_channels: int, out_channels: int = 256, scales: Sequence[float] = (4, 2, 1, 0.5), num_outs: int = 5
    ) -> None:
        super().__init__()
        check_whole('in_channels', in_channels, 4)
        check_whole('out_channels', out_channels)
        known = (4, 2, 1, 0.5)
        if not isinstance(scales, Sequence) or not scales or [x for x in known if x in scales] != list(scales):
            raise ValueError(f'scales must be a list of {", ".join(map(str, known))}, in this order, not {scales!r}')
        check_whole('num_outs', num_outs, len(scales))
        self.num_outs = num_outs
        self.halves = 0.5 in scales
        self.levels = nn.ModuleList()
        for scale in scales:
            resize, channels = _resize(in_channels, scale)
            layers = [
                nn.Conv2d(channels, out_channels, 1, bias=False),
                LayerNorm2d(out_channels),
                nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                LayerNorm2d(out_channels),
            ]
            self.levels.append(nn.Sequential(*resize, *layers))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps (B, in_channels, h, w), of which the last is taken -> (B, out_channels, scale * h, scale * w) each.

        Raises:
            InputError: if the map is too small to be halved.
        """
        if self.halves and min(maps[-1].shape[2:]) < 2:
            raise InputError(
                f'SimpleFeaturePyramid cannot halve a map of {" x ".join(map(str, maps[-1].shape[2:]))}: take larger '
                'images, or leave the scale 0.5 out'
            )
        outs = [level(maps[-1]) for level in self.levels]
        while len(outs) < self.num_outs:
            outs.append(F.max_pool2d(outs[-1], 1, 2))
        return tuple(outs)


def _resize(channels: int, scale: float) -> tuple[list[nn.Module], int]:
    """The layers that bring a map to a scale, and the channels of their result."""
    if scale == 0.5:
        return [nn.MaxPool2d(2)], channels
    if scale == 1:
        return [], channels
    half = [nn.ConvTranspose2d(channels, channels // 2, 2, 2)]
    if scale == 2:
        return half, channels // 2
    quarter = nn.ConvTranspose2d(channels // 2, channels // 4, 2, 2)
    return [*half, LayerNorm2d(channels // 2), nn.GELU(), quarter], channels // 4
