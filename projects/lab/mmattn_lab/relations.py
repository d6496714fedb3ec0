"""Attention whose weights come from relations of a pixel and its k x k neighbours, which GSA is compared with (table
3): local relation networks, and the two forms of "Exploring Self-attention for Image Recognition".

Here, outside of the map all neighbours are zero. SAN's release mirrors the map.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmattn.arguments import check_odd, check_whole
from mmattn.layers.norm import batch_norm
from mmattn.layers.token_conv import TokenConv2d
from mmattn.layers.token_mixer import TOKEN_MIXERS
from mmattn.ops import elsa_attention, neighbourhood_sum


class Relation(nn.Module):
    """Value projection, and weights for groups of consecutive channels and k x k neighbours from a subclass.

    Args:
        dim: channels C.
        kernel_size: side k of the neighbourhood, odd.
        share: channels that have the same weights. If it does not divide C, their greatest common divisor.

    Raises:
        ValueError: if an argument, also of a subclass, is wrong; the message names it.
    """

    def __init__(self, dim: int, kernel_size: int, share: int) -> None:
        super().__init__()
        check_whole('dim', dim)
        check_odd('kernel_size', kernel_size)
        check_whole('share', share)
        self.kernel_size = kernel_size
        self.groups = dim // math.gcd(dim, share)
        self.settings = dict(kernel_size=int(kernel_size))
        self.value = TokenConv2d(dim, dim, 1)

    def offsets(self, like: Tensor) -> Tensor:
        """(k, k, 2): row and column of a neighbour minus those of the pixel."""
        steps = torch.arange(self.kernel_size, device=like.device, dtype=like.dtype) - self.kernel_size // 2
        return torch.stack(torch.meshgrid(steps, steps, indexing='ij'), -1)

    def neighbours(self, x: Tensor) -> Tensor:
        """(B, H, W, c) -> (B, c, H, W, k, k), a view of the padded map."""
        k = self.kernel_size
        return F.pad(x.permute(0, 3, 1, 2), [k // 2] * 4).unfold(2, k, 1).unfold(3, k, 1)


@TOKEN_MIXERS.register_module()
class LocalRelation(Relation):
    r"""Local relation layer ("Local Relation Networks for Image Recognition", https://arxiv.org/abs/1904.11491,
    with the squared difference):

    .. math::
        y_i = \sum_j \mathrm{softmax}_j(-(q_i - k_j)^2 + g(j - i)) \, v_j

    Query and key of a group of channels are single numbers. The geometric prior g has two linear layers. Not in the
    paper: the hidden channels of g, one for each group.

    Args:
        share: m of the paper.

    Further arguments, and errors: see :class:`Relation`.
    """

    def __init__(self, dim: int, *, kernel_size: int = 7, share: int = 8) -> None:
        super().__init__(dim, kernel_size, share)
        self.query = TokenConv2d(dim, self.groups, 1)
        self.key = TokenConv2d(dim, self.groups, 1)
        self.geometry = nn.Sequential(nn.Linear(2, self.groups), nn.ReLU(), nn.Linear(self.groups, self.groups))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        likeness = -(self.query(x).permute(0, 3, 1, 2)[..., None, None] - self.neighbours(self.key(x))).square()
        prior = self.geometry(self.offsets(self.query.weight)).permute(2, 0, 1)[:, None, None]
        logits = (likeness + prior).flatten(4).permute(0, 2, 3, 1, 4)  # (B, H, W, groups, k * k)
        return elsa_attention(logits, self.value(x))


@TOKEN_MIXERS.register_module()
class PairwiseAttention(Relation):
    r"""Pairwise self-attention ("Exploring Self-attention for Image Recognition", https://arxiv.org/abs/2004.13621,
    section 3.1, with the relation "subtraction"):

    .. math::
        y_i = \sum_j \mathrm{softmax}_j \, \gamma([\varphi(x_i) - \psi(x_j), P (p_i - p_j)]) \odot \beta(x_j)

    gamma is norm, ReLU, linear, norm, ReLU, linear. Coordinates p are from -1 to 1 over the map.

    Args:
        reduction: channels of values divided by those of phi and psi, rounded down; r1 / r2 of the paper.
        norm_cfg: the batch norms, see :func:`mmattn.layers.batch_norm`.

    Further arguments, and errors: see :class:`Relation`.
    """

    def __init__(
        self, dim: int, *, kernel_size: int = 7, reduction: int = 4, share: int = 8, norm_cfg: dict = dict(type='BN')
    ) -> None:
        super().__init__(dim, kernel_size, share)
        check_whole('reduction', reduction)
        width = max(dim // reduction, 1)
        self.query = TokenConv2d(dim, width, 1)
        self.key = TokenConv2d(dim, width, 1)
        self.position = nn.Linear(2, 2, bias=False)  # A bias would vanish in the difference.
        self.weights = nn.Sequential(
            batch_norm(width + 2, norm_cfg),
            nn.ReLU(inplace=True),
            nn.Conv2d(width + 2, width, 1, bias=False),
            batch_norm(width, norm_cfg),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, self.groups, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        B, H, W, _ = x.shape
        difference = self.query(x).permute(0, 3, 1, 2)[..., None, None] - self.neighbours(self.key(x))
        step = x.new_tensor([2 / max(H - 1, 1), 2 / max(W - 1, 1)])
        position = self.position(-self.offsets(x) * step).permute(2, 0, 1)[:, None, None]
        relation = torch.cat((difference, position.expand(B, -1, H, W, -1, -1).to(difference.dtype)), 1)
        logits = self.weights(relation.flatten(4).flatten(2, 3)).unflatten(2, (H, W))
        return elsa_attention(logits.permute(0, 2, 3, 1, 4), self.value(x))


@TOKEN_MIXERS.register_module()
class PatchwiseAttention(Relation):
    r"""Patchwise self-attention ("Exploring Self-attention for Image Recognition", https://arxiv.org/abs/2004.13621,
    section 3.2, with the relation "concatenation"):

    .. math::
        y_i = \sum_j \gamma([\varphi(x_i), \psi(x_{j'}) \text{ of all neighbours } j'])_j \odot \beta(x_j)

    gamma is norm, ReLU, linear, norm, ReLU, linear. There is no softmax. Arguments are those of
    :class:`PairwiseAttention`.
    """

    def __init__(
        self, dim: int, *, kernel_size: int = 7, reduction: int = 4, share: int = 8, norm_cfg: dict = dict(type='BN')
    ) -> None:
        super().__init__(dim, kernel_size, share)
        check_whole('reduction', reduction)
        width = max(dim // reduction, 1)
        self.query = TokenConv2d(dim, width, 1)
        self.key = TokenConv2d(dim, width, 1)
        self.weights = nn.Sequential(
            batch_norm(width * (kernel_size**2 + 1), norm_cfg),
            nn.ReLU(inplace=True),
            nn.Conv2d(width * (kernel_size**2 + 1), self.groups, 1, bias=False),
            batch_norm(self.groups, norm_cfg),
            nn.ReLU(inplace=True),
            nn.Conv2d(self.groups, kernel_size**2 * self.groups, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        patch = self.neighbours(self.key(x)).permute(0, 1, 4, 5, 2, 3).flatten(1, 3)
        weights = self.weights(torch.cat((self.query(x).permute(0, 3, 1, 2), patch), 1))
        return neighbourhood_sum(weights.permute(0, 2, 3, 1).unflatten(-1, (self.groups, -1)), self.value(x))
