from torch import Tensor, nn

from ..arguments import check_heads, check_rates
from ..ops import shunted_attention
from .mechanism import MECHANISMS
from .token_conv import TokenConv2d


@MECHANISMS.register_module()
class SelfAttention(nn.Module):
    """Plain multi-head attention to all tokens, as in a ViT; the projections to query, key and value have no bias. The
    tensors are those of VOLO's release.

    timm's computes the same, but torch.compile makes new graphs of it for new sizes of images.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.shunted_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int, *, attn_drop_rate: float = 0.0, drop_rate: float = 0.0) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        self.add_projections(dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def add_projections(self, dim: int) -> None:
        """Add the layers that ``query_key_value`` needs."""
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, H, W, C) -> three maps of C channels, the first of the same shape."""
        return self.qkv(x).chunk(3, -1)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        q, k, v = self.query_key_value(x)
        dropout_p = self.attn_drop_rate if self.training else 0.0
        x = shunted_attention(q, [k], [v], self.num_heads, dropout_p, self.backend)
        return self.drop(self.proj(self.enhance(x, v)))

    def enhance(self, x: Tensor, value: Tensor) -> Tensor:
        """What is projected back, from the result of the attention and the values; all are (B, H, W, C)."""
        return x


@MECHANISMS.register_module()
class EnhancedAttention(SelfAttention):
    """Shunted attention at r = 1 (stage 4): plain attention, plus a depth-wise convolution of the values. All
    projections have biases. Arguments are those of :class:`SelfAttention`."""

    def add_projections(self, dim: int) -> None:
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.local_conv = TokenConv2d(dim, dim, 3, padding=1, groups=dim)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), *self.kv(x).chunk(2, -1)

    def enhance(self, x: Tensor, value: Tensor) -> Tensor:
        return x + self.local_conv(value)
