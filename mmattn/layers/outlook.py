import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_heads, check_rates
from ..ops.any_size import average_pool, ceil_div, fold
from .token_mixer import TOKEN_MIXERS


@TOKEN_MIXERS.register_module()
class OutlookAttention(nn.Module):
    """Outlook attention, with 3 x 3 patches at stride 2 ("VOLO: Vision Outlooker for Visual Recognition", section 3.1,
    https://arxiv.org/abs/2106.13112), with the tensors of its release.

    A linear layer on the map, average-pooled 2 x 2, makes a 9 x 9 matrix per place and head: the softmax weights with
    which the values of the 3 x 3 patch around an even row and column are mixed. Where patches overlap, results add up.
    An odd last row or column of the map is pooled alone. Values outside the map are zero, and they are not masked.
    timm's computes the same, but torch.compile makes new graphs of it for new sizes of images.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(self, dim: int, num_heads: int, *, attn_drop_rate: float = 0.0, drop_rate: float = 0.0) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.v = nn.Linear(dim, dim, bias=False)
        self.attn = nn.Linear(dim, 81 * num_heads)
        self.attn_drop = nn.Dropout(attn_drop_rate)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return self.drop(self.proj(self.weigh(x, self.v(x))))

    def weigh(self, x: Tensor, value: Tensor) -> Tensor:
        """The sum of the values (B, H, W, C) with the weights that x (B, H, W, C) gives, (B, H, W, C)."""
        _, H, W, C = x.shape
        heads, places = self.num_heads, ceil_div(H, 2) * ceil_div(W, 2)
        pooled = average_pool(x.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        weights = self.attn(pooled).unflatten(-1, (heads, 9, 9)).transpose(1, 2) * self.scale
        weights = self.attn_drop(weights.softmax(-1).to(value.dtype))  # (B, heads, places, 9, 9)
        patches = F.unfold(value.permute(0, 3, 1, 2), 3, padding=1, stride=2)
        patches = patches.view(-1, heads, C // heads, 9, places).permute(0, 1, 4, 3, 2)
        mixed = (weights @ patches).permute(0, 1, 4, 3, 2).reshape(-1, 9 * C, places)
        return fold(mixed, H, W)
