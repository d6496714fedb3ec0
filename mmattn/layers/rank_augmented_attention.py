import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_heads, check_odd, check_rates, check_whole
from ..ops.backend import without_autocast
from ..ops.heads import join_heads, split_heads
from ..ops.rotary import check_rope, rotation, turned
from .casts import cast_once
from .starts import rank_augmented_from_plain, rank_augmented_from_pvt
from .token_conv import DepthwiseConv2d
from .token_mixer import TOKEN_MIXERS, with_prefix


@TOKEN_MIXERS.register_module()
class RankAugmentedAttention(nn.Module):
    r"""Rank-augmented linear attention, RALA ("Breaking the Low-Rank Dilemma of Linear Attention",
    https://arxiv.org/abs/2411.07635): attention to all tokens by products of matrices, at a cost linear in their
    number.

    .. math::
        y_i = \phi(x_i) \odot \frac{\kappa(q_i) \sum_j \alpha_j \kappa(k_j)^\top v_j}{\kappa(q_i) \sum_j \alpha_j
        \kappa(k_j)^\top}, \qquad
        \alpha_j = N \, \mathrm{softmax}_j\big(\bar q \, \kappa(k_j)^\top / \sqrt d\big)

    :math:`\kappa` is ELU + 1, :math:`\bar q` the mean of the queries' :math:`\kappa`, and :math:`\phi` a linear layer.
    :math:`\alpha` raises the rank of the sum over keys and values, the factor :math:`\phi` that of the result. Sums
    are computed in float32 at least. The paper's RAVLT has it in the first two of four stages.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        rope: base of a rotary position embedding in pixels of the map, 10000 in the paper's RAVLT, see
            :func:`mmattn.ops.rotary.rotation`. It turns the kernels of queries and keys, but not in the denominator.
            Prefix tokens have no position. None: there is none.
        local_size: side of a depth-wise convolution of the values, odd, which is added to the result of attention,
            before the factor; 5 in RAVLT. 0: there is none.
        drop_rate: dropout of the output.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    takes_prefix = True
    warm_start = rank_augmented_from_plain
    from_pvt = rank_augmented_from_pvt

    def __init__(
        self, dim: int, num_heads: int, *, rope: float | None = None, local_size: int = 0, drop_rate: float = 0.0
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_rope(rope, dim // num_heads)
        check_whole('local_size', local_size, 0)
        if local_size:
            check_odd('local_size', local_size)
        check_rates(drop_rate=drop_rate)
        self.num_heads = num_heads
        self.rope = rope
        self.settings = {} if rope is None else dict(rope=float(rope))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.phi = nn.Linear(dim, dim)
        self.local_conv = DepthwiseConv2d(dim, local_size) if local_size else None
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: (B, H, W, C) -> (B, H, W, C); with a prefix (B, P, C), a pair of these shapes."""
        shape, count = x.shape, 0 if prefix is None else prefix.shape[1]
        own, x = cast_once(self, with_prefix(prefix, x))
        q, k, v = own.qkv(x).chunk(3, -1)
        out = self.attend(q, k, v, shape)
        if own.local_conv is not None:
            local = own.local_conv(v[:, count:].unflatten(1, shape[1:3])).flatten(1, 2)
            out = out + (F.pad(local, (0, 0, count, 0)) if count else local)
        out = own.drop(own.proj(out * own.phi(x)))
        return out.view(shape) if prefix is None else (out[:, count:].view(shape), out[:, :count])

    def attend(self, query: Tensor, key: Tensor, value: Tensor, shape: torch.Size) -> Tensor:
        """The result of attention, before the factor.

        Args:
            query, key, value: (B, P + H * W, C), the prefix first.
            shape: of the map, (B, H, W, C).

        Returns:
            (B, P + H * W, C).
        """
        exact, width = torch.promote_types(value.dtype, torch.float32), shape[3] // self.num_heads
        with without_autocast(query):
            q, k = (F.elu(each.to(exact)) + 1 for each in (query, key))
            places = q, k
            if self.rope is not None:
                angles = rotation(*shape[1:3], width, self.rope, q, pixels=True)
                count = q.shape[1] - shape[1] * shape[2]
                places = (turned(each, count, shape, self.num_heads, angles) for each in places)
            q, k, turned_q, turned_k, v = (
                split_heads(each, self.num_heads) for each in (q, k, *places, value.to(exact))
            )
            # alpha / N, because numerator and denominator have the same N
            weights = (q.mean(2, keepdim=True) * width**-0.5 * k).sum(-1, keepdim=True).softmax(2)
            # 1e-6 as in the authors' code: kernels of large negative queries are zero
            total = (q * (weights * k).sum(2, keepdim=True)).sum(-1, keepdim=True) + 1e-6  # (B, heads, tokens, 1)
            out = turned_q @ ((turned_k * weights).mT @ v) / total
            return join_heads(out).to(value.dtype)
