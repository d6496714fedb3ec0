"""Shunted attention (section 3.1.1 of the Shunted Transformer's paper), on (B, H, W, C) tokens."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_choice, check_heads, check_rates, check_whole
from ..ops import shunted_attention
from ..ops.any_size import crop, repeat_to_multiple
from .casts import cast_once
from .ghost import ghost_head
from .starts import shunted_from_plain, shunted_from_pvt
from .token_conv import DepthwiseConv2d, PatchConv2d
from .token_mixer import TOKEN_MIXERS


class TokenMerging(PatchConv2d, nn.Conv2d):
    """Merge r x r tokens into one: a convolution with kernel size r and stride r.

    If r does not divide the map, the last row and column are repeated at the bottom and the right, so that every token
    is merged. They are repeated and not zero, because a norm follows: it would scale up a token that is mostly zeros.

    Args:
        in_channels: channels in.
        out_channels: channels out.
        reduction: r.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_channels) -> (B, ceil(H / r), ceil(W / r), out_channels)."""
        return super().forward(repeat_to_multiple(x, self.stride[0], (1, 2)))


class TokenPooling(nn.Linear):
    """Merge r x r tokens into their mean, and apply a linear layer (table 8, "Linear").

    The last row and column are repeated as in :class:`TokenMerging`. The paper does not define this form: it prints
    18.5 M parameters and 4.5 G for Shunted-S, this one has 18.22 M and 4.74 G.

    Args:
        dim: channels in and out.
        reduction: r.
    """

    def __init__(self, dim: int, reduction: int) -> None:
        super().__init__(dim, dim)
        self.reduction = reduction

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, dim) -> (B, ceil(H / r), ceil(W / r), dim)."""
        r = self.reduction
        x = repeat_to_multiple(x, r, (1, 2)).unflatten(2, (-1, r)).unflatten(1, (-1, r))
        return super().forward(x.mean((2, 4)))


class LocalEnhancement(DepthwiseConv2d, nn.Conv2d):
    """x plus its 3 x 3 depth-wise convolution: LE of equation 1 and DS of equation 3.

    Args:
        dim: channels.
    """

    skip = True


#: ways to merge tokens, see ``ShuntedAttention``
AGGREGATIONS = ('shunted', 'convolution', 'linear')


@TOKEN_MIXERS.register_module()
class ShuntedAttention(nn.Module):
    """Shunted self-attention (equations 1 and 2).

    The heads form groups of equal size. Keys and values of a group come from tokens merged at the rate of the group.
    Each group pads the map for its own merging. The paper has two groups, merged r x r and r / 2 x r / 2.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        reduction: r, even; or a list of one rate per group, whose length divides ``num_heads``: r is the same as
            [r, r / 2], 1 as [1]. At rate 1, a token is not merged with others. None: 32 / ``stride``, at least 2, the
            paper's r.
        stride: of the map, in pixels of the image.
        aggregation: of tokens (table 8). 'shunted': convolutions merge them, and a depth-wise convolution enhances the
            values; 'convolution': no enhancement; 'linear': enhancement, and merging by :class:`TokenPooling`.
        ghost_size: side of a ghost head, odd; 0: none. See :class:`mmattn.layers.ghost.GhostHead`. Each group has
            its own, of its merged values: a token gets what the merged token gets that it is part of.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.shunted_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    warm_start = shunted_from_plain
    from_pvt = shunted_from_pvt

    def __init__(
        self,
        dim: int,
        num_heads: int,
        reduction: int | Sequence[int] | None = None,
        *,
        stride: int = 16,
        aggregation: str = 'shunted',
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('stride', stride)
        check_choice('aggregation', aggregation, AGGREGATIONS)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        rates = group_rates(max(32 // stride // 2 * 2, 2) if reduction is None else reduction, num_heads)
        self.num_heads = num_heads
        self.num_groups = len(rates)
        self.rates = rates
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        self.settings = dict(reduction=rates) if aggregation == 'linear' else {}

        self.q = nn.Linear(dim, dim)
        width = dim // self.num_groups
        parts = {
            'sr': lambda rate: TokenPooling(dim, rate) if aggregation == 'linear' else TokenMerging(dim, dim, rate),
            'norm': lambda _: nn.LayerNorm(dim),
            'kv': lambda _: nn.Linear(dim, 2 * width),
            'local_conv': lambda _: LocalEnhancement(width) if aggregation != 'convolution' else nn.Identity(),
            'ghost': lambda _: ghost_head(width, ghost_size),
        }
        for name, make in parts.items():  # sr1, sr2, norm1, norm2, ...
            for group, rate in enumerate(rates, start=1):
                self.add_module(f'{name}{group}', make(rate))
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        own, x = cast_once(self, x)
        keys, values = zip(*own.keys_values(x))
        dropout_p = self.attn_drop_rate if self.training else 0.0
        x = shunted_attention(own.q(x), keys, values, self.num_heads, dropout_p, self.backend)
        if self.ghost1 is not None:
            x = x + torch.cat([self.ghost_head(group, value, x.shape) for group, value in enumerate(values)], -1)
        return self.drop(own.proj(x))

    def ghost_head(self, group: int, value: Tensor, shape: torch.Size) -> Tensor:
        """The ghost head of a group, counted from 0, on a map (B, H, W, C): from its values (B, h, w, C / groups)
        to (B, H, W, C / groups)."""
        rate = self.rates[group]
        merged = getattr(self, f'ghost{group + 1}')(value)
        return crop(merged.repeat_interleave(rate, 1).repeat_interleave(rate, 2), *shape[1:3])

    def keys_values(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Equation 1. x: (B, H, W, C) -> key and value of each group, (B, ceil(H / r_g), ceil(W / r_g), C / groups)."""
        pairs = []
        for group in range(1, self.num_groups + 1):
            merge, norm, project, enhance = (
                getattr(self, f'{name}{group}') for name in ('sr', 'norm', 'kv', 'local_conv')
            )
            k, v = project(F.gelu(norm(merge(x)))).chunk(2, -1)
            pairs.append((k, enhance(v)))
        return pairs


def group_rates(reduction: int | Sequence[int], num_heads: int, name: str = 'reduction') -> list[int]:
    """The rate of each group of heads: [r, r / 2] for an even number r, one group for 1.

    Raises:
        ValueError: if a rate is impossible, or heads cannot be divided into the groups; ``name`` is the argument's.
    """
    if not isinstance(reduction, Sequence):
        check_whole(name, reduction)
        if reduction > 1 and reduction % 2:
            raise ValueError(f'{name} must be even, 1 or a list of one rate per group of heads, not {reduction}')
        reduction = [reduction, reduction // 2] if reduction > 1 else [1]
    for rate in reduction:
        check_whole(name, rate)
    if not reduction or num_heads % len(reduction):
        raise ValueError(f'num_heads must be a multiple of the {len(reduction)} groups of {name}, not {num_heads}')
    return [int(rate) for rate in reduction]
