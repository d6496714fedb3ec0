import torch.nn.functional as F
from torch import Tensor, nn


class DropPath(nn.Module):
    """Stochastic depth: drop a residual branch of whole samples ("Deep Networks with Stochastic Depth").

    Args:
        p: probability of dropping, during training only.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, ...) -> the same with some samples zero and the others scaled by 1 / (1 - p)."""
        if self.p == 0.0 or not self.training:
            return x
        keep = F.dropout(x.new_ones(len(x), *[1] * (x.dim() - 1)), self.p)
        return x * keep

    def extra_repr(self) -> str:
        return f'p={self.p}'
