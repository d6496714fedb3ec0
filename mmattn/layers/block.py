from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.backend import autocast_dtype, has_hooks
from ..ops.layer_norm import kernels_serve, sum_and_norm_triton
from .token_conv import PatchConv2d, TokenConv2d
from .token_mixer import mix, mix_with_prefix


class DropPath(nn.Module):
    """Stochastic depth ("Deep Networks with Stochastic Depth"): in training, an image loses the branch with probability
    ``drop_prob``; those that keep it have it scaled, so that the mean stays."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, ...) -> (B, ...)."""
        if not self.training or not self.drop_prob:
            return x
        return x * F.dropout(x.new_ones(x.shape[0], *(1,) * (x.dim() - 1)), self.drop_prob)

    def kept(self, x: Tensor, branches: int) -> list[Tensor | None]:
        """For each branch, the images (B) of x that keep it: 1, others 0, in float32; or None, if all do."""
        if not self.training or not self.drop_prob:
            return [None] * branches
        images = torch.empty(branches, x.shape[0], device=x.device)
        return list(images.bernoulli_(1 - self.drop_prob))


class LayerScale(nn.Module):
    """A factor per channel, which starts at ``value`` ("Going deeper with Image Transformers", equation 3)."""

    def __init__(self, dim: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., dim) -> (..., dim)."""
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm transformer block: x + attn(norm1(x)), then x + mlp(norm2(x)); both branches have stochastic depth.

    Prefix tokens (a class token, registers) pass through the same layers. The MLP treats each of them as a map of one
    pixel. An ``attn`` that does not take them leaves them as they are.

    Args:
        dim: channels.
        attn: from (B, H, W, dim) to (B, H, W, dim); if it has ``takes_prefix``, with (B, P, dim) beside it.
        mlp: from (B, H, W, dim) to (B, H, W, dim).
        drop_path: probability of dropping a branch.
        eps: eps of the two norms.
        layer_scale: what the factors of the channels of a branch start at ("Going deeper with Image Transformers");
            None: there are none.
    """

    #: a block of the backbone: layers are counted by blocks, and FSDP shards one by one
    is_block = True

    def __init__(
        self,
        dim: int,
        attn: nn.Module,
        mlp: nn.Module,
        drop_path: float = 0.0,
        eps: float = 1e-5,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps)
        self.attn = attn
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps)
        self.mlp = mlp
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: (B, H, W, dim) -> (B, H, W, dim); with a prefix (B, P, dim), a pair of these shapes."""
        if prefix is None and kernels_serve(x, self.norm1, self.norm2, self.drop_path):
            return self._by_kernels(x)
        if prefix is None:
            x = x + self.drop_path(self.ls1(mix(self.attn, self.norm1(x))))
            return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        mixed, mixed_prefix = mix_with_prefix(self.attn, self.norm1(x), self.norm1(prefix))
        x, prefix = self._sum(x, prefix, self.ls1(mixed), None if mixed_prefix is None else self.ls1(mixed_prefix))
        pixels = self.mlp(self.norm2(prefix).flatten(0, 1)[:, None, None])
        return self._sum(x, prefix, self.ls2(self.mlp(self.norm2(x))), self.ls2(pixels.view(prefix.shape)))

    def _by_kernels(self, x: Tensor) -> Tensor:
        """(B, H, W, dim) -> (B, H, W, dim), where each sum and the norm of it are one kernel."""
        drop, attn, mlp = self.drop_path, self.attn, self.mlp
        (first, second), rate = drop.kept(x, 2), drop.drop_prob
        norm, dtype = self.norm1, _read_dtype(attn, x)
        x, tokens = sum_and_norm_triton(x, None, norm.weight, norm.bias, eps=norm.eps, dtype=dtype)
        branch = self.ls1(mix(attn, tokens))
        norm, dtype = self.norm2, _read_dtype(mlp, x)
        x, tokens = sum_and_norm_triton(x, branch, norm.weight, norm.bias, first, norm.eps, rate, dtype)
        return sum_and_norm_triton(x, self.ls2(mlp(tokens)), None, None, second, rate=rate)[0]

    def _sum(self, x: Tensor, prefix: Tensor, branch: Tensor, of_prefix: Tensor | None) -> tuple[Tensor, Tensor]:
        """Residuals of a map and of a prefix. Stochastic depth drops both of an image, or none."""
        factor = self.drop_path(branch.new_ones(x.shape[0], 1, 1, 1))  # in evaluation, too: its hooks must fire
        if self.training and self.drop_path.drop_prob:
            branch, of_prefix = factor * branch, None if of_prefix is None else factor[:, 0] * of_prefix
        return x + branch, prefix if of_prefix is None else prefix + of_prefix


def _read_dtype(module: nn.Module, x: Tensor) -> torch.dtype:
    """The dtype in which a module may get its tokens without another result: autocast's, if nothing else than
    the linear layers and convolutions ``read_by`` reads them. Else, that of a norm's result."""
    names = getattr(type(module), 'read_by', ())
    rounds = bool(names) and not has_hooks(module)
    for name in [names] if isinstance(names, str) else names:
        layer = attrgetter(name)(module)
        rounds = rounds and type(layer) in (nn.Linear, TokenConv2d, PatchConv2d) and not has_hooks(layer)
    if rounds or not torch.is_autocast_enabled():
        return autocast_dtype(x)
    return torch.promote_types(x.dtype, torch.float32)
