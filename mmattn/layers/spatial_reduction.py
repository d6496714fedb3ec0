from torch import Tensor, nn

from ..arguments import check_heads, check_rates, check_whole
from ..ops import multi_head_attention
from ..ops.any_size import crop_to_multiple
from .casts import cast_once
from .token_conv import PatchConv2d
from .token_mixer import TOKEN_MIXERS


@TOKEN_MIXERS.register_module()
class SpatialReductionAttention(nn.Module):
    """Attention to merged tokens, of "PVT v2: Improved Baselines with Pyramid Vision Transformer"
    (https://arxiv.org/abs/2106.13797). Shunted attention has it at two rates. The tensors are those of PVTv2's release.

    Keys and values come from tokens that a convolution merges r x r. As in the release, rows and columns that do not
    fill the last r are left out. A map smaller than r, which the release refuses, is padded with zeros.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        reduction: r; 1 is plain attention. None: 32 / ``stride``, at least 1, as in PVTv2.
        stride: of the map, in pixels of the image.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        reduction: int | None = None,
        *,
        stride: int = 16,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('stride', stride)
        reduction = max(32 // stride, 1) if reduction is None else reduction
        check_whole('reduction', reduction)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.num_heads = num_heads
        self.reduction = int(reduction)
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)
        if reduction > 1:
            self.sr = PatchConv2d(dim, dim, reduction)
            self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        own, x = cast_once(self, x)
        return self.drop(own.proj(self.attend(*own.query_key_value(x))))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query (B, H, W, C), key and value (B, h, w, C) -> (B, H, W, C)."""
        dropout_p = self.attn_drop_rate if self.training else 0.0
        return multi_head_attention(query, key, value, self.num_heads, None, dropout_p, self.backend)

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, H, W, C) -> query of the same shape, key and value of the merged tokens."""
        query = self.q(x)
        if self.reduction > 1:
            x = self.norm(self.sr(crop_to_multiple(x, self.reduction)))
        return query, *self.kv(x).chunk(2, -1)
