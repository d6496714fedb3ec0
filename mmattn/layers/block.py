from timm.layers import DropPath
from torch import Tensor, nn

from .mechanism import mix, mix_with_prefix


class Block(nn.Module):
    """Pre-norm transformer block: x + attn(norm1(x)), then x + mlp(norm2(x)); both branches have stochastic depth.

    Prefix tokens (a class token, registers) pass through the same layers. The MLP takes each of them for a map of one
    pixel. They get nothing from an ``attn`` that does not take them.

    Args:
        dim: channels.
        attn: from (B, H, W, dim) to (B, H, W, dim); if it has ``takes_prefix``, with (B, P, dim) beside it.
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

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: (B, H, W, dim) -> (B, H, W, dim); with a prefix (B, P, dim), a pair of these shapes."""
        if prefix is None:
            x = x + self.drop_path(mix(self.attn, self.norm1(x)))
            return x + self.drop_path(self.mlp(self.norm2(x)))
        x, prefix = self._sum(x, prefix, *mix_with_prefix(self.attn, self.norm1(x), self.norm1(prefix)))
        pixels = self.norm2(prefix).flatten(0, 1)[:, None, None]
        return self._sum(x, prefix, self.mlp(self.norm2(x)), self.mlp(pixels).view(prefix.shape))

    def _sum(self, x: Tensor, prefix: Tensor, branch: Tensor, of_prefix: Tensor | None) -> tuple[Tensor, Tensor]:
        """Residuals of a map and of a prefix. Stochastic depth drops both of an image, or none."""
        if self.training and self.drop_path.drop_prob:
            factor = self.drop_path(branch.new_ones(x.shape[0], 1, 1, 1))
            branch, of_prefix = factor * branch, None if of_prefix is None else factor[:, 0] * of_prefix
        return x + branch, prefix if of_prefix is None else prefix + of_prefix
