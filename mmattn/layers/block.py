from timm.layers import DropPath
from torch import Tensor, nn

from .mechanism import mix


class Block(nn.Module):
    """Pre-norm transformer block: x + attn(norm1(x)), then x + mlp(norm2(x)); both branches have stochastic depth.

    Args:
        dim: channels.
        attn: from (B, H, W, dim) to (B, H, W, dim).
        mlp: from (B, H, W, dim) to (B, H, W, dim).
        drop_path: probability of dropping a branch.
        eps: eps of the two norms.
    """

    #: a unit of FSDP, see mmattn/runs/sharding.py, and a layer of ``Backbone.get_layer_depth``
    sharding_unit = True

    def __init__(self, dim: int, attn: nn.Module, mlp: nn.Module, drop_path: float = 0.0, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim, eps)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, H, W, dim)."""
        x = x + self.drop_path(mix(self.attn, self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))
