from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layer, GELU, linear layer over the last dimension.

    Args:
        dim: channels in and out.
        hidden_dim: channels between the two layers.
        drop_rate: dropout after each linear layer.
    """

    def __init__(self, dim: int, hidden_dim: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., dim) -> (..., dim)."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
