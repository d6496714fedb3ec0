from torch import Tensor, nn


class TokenConv2d(nn.Conv2d):
    """Convolution of (B, H, W, C) tokens. In memory they are a channels-last (B, C, H, W) map, so nothing is copied."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_channels) -> (B, H', W', out_channels)."""
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
