"""From images to tokens: the embeddings of patches, and positions for maps of any size."""

import torch
from torch import Tensor, nn

from ..layers import PatchConv2d, batch_norm
from ..ops.any_size import pad_to_multiple
from ..ops.resize import resampled


class PatchEmbed(nn.Module):
    """Patches as tokens by a convolution, and a norm. The image is padded with zeros at the bottom and the right.

    timm's with ``dynamic_img_pad`` computes the same, but pads in the form that mmattn/ops/any_size.py avoids.
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int, norm: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = PatchConv2d(in_channels, dim, patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / patch_size), ceil(W / patch_size), dim)."""
        return self.norm(self.proj(pad_to_multiple(x, self.patch_size, (2, 3)).permute(0, 2, 3, 1)))


class DeiTEmbed(PatchEmbed):
    """:class:`PatchEmbed` without a norm, plus a learned table of positions, resampled to the size of the map."""

    def __init__(self, in_channels: int, dim: int, patch_size: int, side: int) -> None:
        super().__init__(in_channels, dim, patch_size, norm=False)
        self.pos_embed = nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, dim, side, side), std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / patch_size), ceil(W / patch_size), dim)."""
        x = super().forward(x)
        return x + resampled(self.pos_embed, *x.shape[1:3]).permute(0, 2, 3, 1)


class PrefixTokens(nn.Module):
    """The tokens that stand before those of the map: a class token and registers ("Vision Transformers Need
    Registers"). They are learned, and the same for all images."""

    def __init__(self, dim: int, class_token: bool, registers: int) -> None:
        super().__init__()
        for name, count in (('cls_token', int(class_token)), ('reg_token', registers)):
            token = nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, count, dim), std=0.02)) if count else None
            self.register_parameter(name, token)

    def forward(self, batch: int) -> Tensor | None:
        """The number of images -> (batch, P, dim); None if there are no such tokens."""
        tokens = [token for token in (self.cls_token, self.reg_token) if token is not None]
        return torch.cat(tokens, 1).expand(batch, -1, -1) if tokens else None


class SimpleEmbed(nn.Module):
    """Patches as tokens: norm, linear layer, norm; plus a position code ("Better plain ViT baselines for ImageNet-1k").

    A patch is flattened as (row, column, channel).
    """

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        if dim < 8 or dim % 4:
            raise ValueError(
                f'arch: embed_dim must be a multiple of 4 and at least 8, for the position code, not {dim}'
            )
        self.patch_size = patch_size
        self.patch_norm = nn.LayerNorm(in_channels * patch_size**2)
        self.proj = nn.Linear(in_channels * patch_size**2, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, in_channels, H, W) -> (B, ceil(H / patch_size), ceil(W / patch_size), dim)."""
        p = self.patch_size
        x = pad_to_multiple(x, p, (2, 3))
        x = x.unflatten(3, (-1, p)).unflatten(2, (-1, p)).permute(0, 2, 4, 3, 5, 1).flatten(3)
        x = self.norm(self.proj(self.patch_norm(x)))
        return x + position_code(*x.shape[1:], device=x.device).to(x.dtype)


def stem_convolutions(in_channels: int, dim: int, count: int, norm_cfg: dict) -> list[nn.Module]:
    """A 7 x 7 convolution of stride 2, then ``count`` 3 x 3 ones, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for kernel in ((in_channels, dim, 7, 2, 3), *[(dim, dim, 3, 1, 1)] * count):
        layers += [nn.Conv2d(*kernel, bias=False), batch_norm(dim, norm_cfg), nn.ReLU(inplace=True)]
    return layers


def position_code(height: int, width: int, dim: int, device: torch.device | None = None) -> Tensor:
    """(height, width, dim): sines and cosines of the column, then of the row, at dim / 4 frequencies, float32."""
    frequencies = 10000.0 ** -torch.linspace(0, 1, dim // 4, device=device)
    x = torch.arange(width, device=device)[:, None] * frequencies
    y = torch.arange(height, device=device)[:, None] * frequencies
    x, y = (torch.cat((angle.sin(), angle.cos()), 1) for angle in (x, y))
    return torch.cat((x.expand(height, -1, -1), y[:, None].expand(-1, width, -1)), 2)
