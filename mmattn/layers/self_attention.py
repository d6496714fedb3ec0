from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates
from ..ops import shunted_attention
from ..ops.rotary import check_rope, rotated, rotation
from .ghost import ghost_summand
from .mechanism import MECHANISMS
from .starts import enhanced_from_pvt
from .token_conv import DepthwiseConv2d


@MECHANISMS.register_module()
class SelfAttention(nn.Module):
    """Plain multi-head attention to all tokens, as in a ViT. The tensors are those of timm's ViT and VOLO's release.

    timm's computes the same, but torch.compile makes new graphs of it for new sizes of images.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        qkv_bias: whether the projections to query, key and value have a bias.
        rope: base of the rotary position embedding of queries and keys, see :func:`mmattn.ops.rotary.rotation`; prefix
            tokens have no position. None: there is none.
        ghost_size: side of a ghost summand, odd; 0: none. See :class:`mmattn.layers.ghost.GhostSummand`.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.shunted_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    takes_prefix = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = False,
        rope: float | None = None,
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_flags(qkv_bias=qkv_bias)
        check_rope(rope, dim // num_heads)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.num_heads = num_heads
        self.rope = rope
        self.settings = {} if rope is None else dict(rope=float(rope))
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        self.add_projections(dim, qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.ghost = ghost_summand(dim, ghost_size)
        self.drop = nn.Dropout(drop_rate)

    def add_projections(self, dim: int, bias: bool) -> None:
        """Add the layers that ``query_key_value`` needs."""
        self.qkv = nn.Linear(dim, 3 * dim, bias)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, H, W, C) -> three maps of C channels, the first of the same shape."""
        return self.qkv(x).chunk(3, -1)

    def placed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of a map, with its positions."""
        q, k, v = self.query_key_value(x)
        if self.rope is not None:
            angles = rotation(*q.shape[1:3], q.shape[-1] // self.num_heads, self.rope, q)
            q, k = (rotated(each, *angles, self.num_heads) for each in (q, k))
        return q, k, v

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: (B, H, W, C) -> (B, H, W, C); with a prefix (B, P, C), a pair of these shapes."""
        q, k, v = self.placed(x)
        of_prefix = None if prefix is None else self.query_key_value(prefix[:, None])
        mixed, mixed_prefix = self.attend(q, k, v, of_prefix)
        mixed = self.drop(self.proj(self.enhance(mixed, v)))
        return mixed if mixed_prefix is None else (mixed, self.drop(self.proj(mixed_prefix)))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, of_prefix: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The result of the attention, before the projection back.

        Args:
            q, k, v: (B, H, W, C).
            of_prefix: query, key and value of prefix tokens, (B, 1, P, C) each.

        Returns:
            (B, H, W, C), and (B, P, C) or None.
        """
        dropout_p = self.attn_drop_rate if self.training else 0.0
        if of_prefix is None:
            return shunted_attention(q, [k], [v], self.num_heads, dropout_p, self.backend), None
        sides, count = q.shape[1:3], of_prefix[0].shape[2]
        # all tokens as a map of one row, the prefix first
        q, k, v = (torch.cat((p, m.flatten(1, 2)[:, None]), 2) for p, m in zip(of_prefix, (q, k, v)))
        tokens = shunted_attention(q, [k], [v], self.num_heads, dropout_p, self.backend)[:, 0]
        return tokens[:, count:].unflatten(1, sides), tokens[:, :count]

    def enhance(self, x: Tensor, value: Tensor) -> Tensor:
        """What is projected back, from the result of the attention and the values; all are (B, H, W, C)."""
        return x if self.ghost is None else x + self.ghost(value)


@MECHANISMS.register_module()
class EnhancedAttention(SelfAttention):
    """Shunted attention at r = 1 (stage 4): plain attention, plus a depth-wise convolution of the values. By default
    all projections have biases. Arguments are those of :class:`SelfAttention`."""

    from_pvt = enhanced_from_pvt

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        rope: float | None = None,
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        rates = dict(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        super().__init__(dim, num_heads, qkv_bias=qkv_bias, rope=rope, ghost_size=ghost_size, **rates)

    def add_projections(self, dim: int, bias: bool) -> None:
        self.q = nn.Linear(dim, dim, bias)
        self.kv = nn.Linear(dim, 2 * dim, bias)
        self.local_conv = DepthwiseConv2d(dim)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), *self.kv(x).chunk(2, -1)

    def enhance(self, x: Tensor, value: Tensor) -> Tensor:
        return super().enhance(x + self.local_conv(value), value)
