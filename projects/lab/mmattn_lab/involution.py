"""Involution, which ELSA's equation 4 has as a special case."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.arguments import check_odd, check_whole
from mmattn.layers.norm import batch_norm
from mmattn.layers.token_conv import TokenConv2d
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops import neighbourhood_sum


@TOKEN_MIXERS.register_module()
class Involution(nn.Module):
    r"""Filters that are made at each pixel from its channels ("Involution", https://arxiv.org/abs/2103.06255):
    :math:`y_i = \sum_j H_{i, j-i} x_j`, :math:`H_i = W_1 \sigma(W_0 x_i)`, where sigma is batch
    norm and ReLU. Outside of the map x is zero.

    Args:
        dim: channels C.
        kernel_size: side k of the filters, odd.
        share: consecutive channels that have the same filter. If it does not divide C, their greatest common divisor.
        reduction: C divided by the channels between the two layers, rounded down.
        norm_cfg: the batch norm, see :func:`mmattn.layers.batch_norm`.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self, dim: int, *, kernel_size: int = 7, share: int = 16, reduction: int = 4, norm_cfg: dict = dict(type='BN')
    ) -> None:
        super().__init__()
        check_whole('dim', dim)
        check_odd('kernel_size', kernel_size)
        check_whole('share', share)
        check_whole('reduction', reduction)
        self.groups = dim // math.gcd(dim, share)
        self.settings = dict(kernel_size=int(kernel_size))
        hidden = max(dim // reduction, 1)
        self.reduce = nn.Conv2d(dim, hidden, 1, bias=False)
        self.norm = batch_norm(hidden, norm_cfg)
        self.span = TokenConv2d(hidden, kernel_size**2 * self.groups, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        hidden = F.relu(self.norm(self.reduce(x.permute(0, 3, 1, 2))), inplace=True)
        return neighbourhood_sum(self.span(hidden.permute(0, 2, 3, 1)).unflatten(-1, (self.groups, -1)), x)
