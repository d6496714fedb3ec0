import torch
from torch import Tensor, nn

from ..arguments import check_odd, check_whole
from ..ops.depthwise_conv import depthwise_conv


class GhostHead(nn.Module):
    r"""The ghost head of any attention: :math:`\gamma S` of equation 8 of "ELSA", with :math:`\gamma = 1`
    and without multiplier.

    Added to the attention's weights, S adds a depth-wise convolution of the values to its result, before the output
    projection. S starts at zero, so the attention starts as if it had no ghost head.

    Args:
        dim: channels C.
        size: side k of S, odd.
    """

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, 1, size, size))

    def forward(self, values: Tensor) -> Tensor:
        """Values (B, H, W, C), zero outside the map -> (B, H, W, C)."""
        return depthwise_conv(values, self.weight)


def ghost_head(dim: int, size: int) -> GhostHead | None:
    """The ghost head that an attention has by its argument ``ghost_size``; none if that is 0.

    Raises:
        ValueError: if the size is neither odd nor 0.
    """
    check_whole('ghost_size', size, 0)
    if not size:
        return None
    check_odd('ghost_size', size)
    return GhostHead(dim, size)
