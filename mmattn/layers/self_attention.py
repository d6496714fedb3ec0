import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates
from ..ops import multi_head_attention
from ..ops.rotary import check_rope, rotary_embed
from .ghost import ghost_head
from .starts import enhanced_from_pvt, enhanced_of_release, plain_before
from .token_conv import DepthwiseConv2d
from .token_mixer import TOKEN_MIXERS, with_prefix


@TOKEN_MIXERS.register_module()
class SelfAttention(nn.Module):
    """Plain multi-head attention to all tokens, as in a ViT. The tensors are those of timm's ViT and VOLO's release.

    timm's computes the same, but torch.compile makes new graphs of it for new sizes of images.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        qkv_bias: whether the projections to query, key and value have a bias.
        rope: base of the rotary position embedding of queries and keys, see :func:`mmattn.ops.rotary.rotation`; prefix
            tokens have no position. None: there is none.
        ghost_size: side of a ghost head, odd; 0: none. See :class:`mmattn.layers.ghost.GhostHead`.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    takes_prefix = True
    read_by = 'qkv'
    rename_tensors = plain_before

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
        self.qkv = nn.Linear(dim, 3 * dim, qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.ghost = ghost_head(dim, ghost_size)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: (B, H, W, C) -> (B, H, W, C); with a prefix (B, P, C), a pair of these shapes."""
        count = 0 if prefix is None else prefix.shape[1]
        q, k, v = self.query_key_value(x, prefix)
        out, local = self.attend(q, k, v), self.enhancement(v[:, count:].view(x.shape))
        if local is not None:
            out = out + F.pad(local.flatten(1, 2), (0, 0, count, 0))
        out = self.drop(self.proj(out))
        return out.view(x.shape) if prefix is None else (out[:, count:].view(x.shape), out[:, :count])

    def query_key_value(self, x: Tensor, prefix: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, H, W, C), prefix: (B, P, C) -> query, key and value (B, P + H * W, C), with their positions."""
        q, k, v = self.qkv(with_prefix(prefix, x)).chunk(3, -1)
        count = 0 if prefix is None else prefix.shape[1]
        q, k = (rotary_embed(each, count, x.shape, self.num_heads, self.rope) for each in (q, k))
        return q, k, v

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Three (B, N, C) -> the result of the attention, (B, N, C)."""
        dropout_p = self.attn_drop_rate if self.training else 0.0
        return multi_head_attention(query, key, value, self.num_heads, None, dropout_p, self.backend)

    def enhancement(self, value: Tensor) -> Tensor | None:
        """What is added to the result of the attention, from the map of the values; both are (B, H, W, C)."""
        return None if self.ghost is None else self.ghost(value)


@TOKEN_MIXERS.register_module()
class EnhancedAttention(SelfAttention):
    """Shunted attention at r = 1 (stage 4): plain attention, plus a depth-wise convolution of the values. By default
    all projections have biases. Arguments are those of :class:`SelfAttention`."""

    from_pvt = enhanced_from_pvt
    rename_tensors = enhanced_of_release

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
        self.local_conv = DepthwiseConv2d(dim)

    def enhancement(self, value: Tensor) -> Tensor:
        ghost, local = super().enhancement(value), self.local_conv(value)
        return local if ghost is None else local + ghost
