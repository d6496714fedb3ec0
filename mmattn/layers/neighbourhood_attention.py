from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates, check_whole
from ..ops.neighbourhood import check_neighbours, may_be_continued, neighbourhood_attention
from .ghost import ghost_head
from .starts import neighbourhood_from_plain
from .token_mixer import TOKEN_MIXERS


@TOKEN_MIXERS.register_module()
class NeighbourhoodAttention(nn.Module):
    """Attention to the k x k nearest pixels: NAT (https://arxiv.org/abs/2204.07143), and with dilation DiNAT
    (https://arxiv.org/abs/2209.15001). The tensors are those of their releases.

    Near the border, the neighbourhood is the nearest one within the map. As in the releases, a map with a side shorter
    than k * dilation is padded up to that with zeros, at the bottom and the right, which take part as keys.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        kernel_size: side k of the neighbourhood, odd, at most 63.
        dilation: distance of neighbours, in pixels, at most 1024: no map is larger. Or several, as ``(1, 8)``, which
            the blocks of a stage have in turn.
        block: number of the block in its stage.
        rel_pos_bias: whether logits have a bias by relative position.
        qkv_bias: whether the projections to query, key and value have biases.
        ghost_size: side of a ghost head, odd; 0: none. See :class:`mmattn.layers.ghost.GhostHead`.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.neighbourhood_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    warm_start = neighbourhood_from_plain
    #: the dilations of DiNAT's detectors are larger than those of the classifiers they start from
    changes_with_images = 'dilation'
    read_by = 'qkv'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel_size: int = 7,
        dilation: int | Sequence[int] = 1,
        block: int = 0,
        rel_pos_bias: bool = True,
        qkv_bias: bool = True,
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        dilations = list(dilation) if isinstance(dilation, (list, tuple)) and dilation else [dilation]
        for each in dilations:
            check_neighbours(kernel_size, each)
            check_whole('dilation', each, most=1024)
        check_whole('block', block, 0)
        check_flags(rel_pos_bias=rel_pos_bias, qkv_bias=qkv_bias)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.dim = dim
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.dilation = int(dilations[block % len(dilations)])
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        #: what no tensor shows
        self.settings = dict(dilation=[int(each) for each in dilations])
        if not rel_pos_bias:
            self.settings['kernel_size'] = int(kernel_size)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        side = 2 * kernel_size - 1
        table = nn.Parameter(nn.init.trunc_normal_(torch.zeros(num_heads, side, side), std=0.02))
        self.rpb = table if rel_pos_bias else None
        self.ghost = ghost_head(dim, ghost_size)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        x = self.attend(qkv).flatten(-2)
        return self.drop(self.proj(x if self.ghost is None else x + self.ghost(qkv.select(3, 2).flatten(-2))))

    def attend(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        """Three (B, H, W, heads, d), or all as one (B, H, W, 3, heads, d) -> (B, H, W, heads, d)."""
        beyond = None
        if may_be_continued(query, self.kernel_size, self.dilation):
            # Padding is zero before the projection, so its keys and values are the biases. LoRA's layer shows none.
            bias = self.qkv.bias if type(self.qkv) is nn.Linear else self.qkv(query.new_zeros(1, self.dim))[0]
            beyond = None if bias is None else bias[self.dim :].unflatten(0, (2, self.num_heads, -1))
        dropout_p = self.attn_drop_rate if self.training else 0.0
        return neighbourhood_attention(
            query, key, value, self.rpb, self.kernel_size, self.dilation, dropout_p, self.backend, beyond=beyond
        )
