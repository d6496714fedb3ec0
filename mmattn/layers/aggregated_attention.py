"""Attention of "TransNeXt: Robust Foveal Visual Perception for Vision Transformers"
(https://arxiv.org/abs/2311.17132), on (B, H, W, C) tokens. The tensors are those of the release."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_heads, check_odd, check_rates, check_whole
from ..ops.aggregated_attention import (
    PooledBias,
    aggregated_attention,
    bias_by_position,
    cosine_attention,
    logarithmic_distances,
    of_norm_1,
    table_of_pairs,
)
from ..ops.any_size import pool_to, pooled_size
from .casts import cast_once
from .norm import normed
from .starts import aggregated_from_plain, aggregated_from_pvt, cosine_from_plain, cosine_from_pvt
from .token_conv import PatchConv2d
from .token_mixer import TOKEN_MIXERS

#: hidden channels of the MLP that makes the bias by position
HIDDEN = 512


class CosineQueries(nn.Module):
    """What the two attentions of TransNeXt have in common: length-scaled cosine attention with query embedding, and
    a bias by position (section 3.1).

    Queries and keys have norm 1. Each head adds a learned vector to its queries, the query embedding. It multiplies
    them by a learned temperature, and by the logarithm of the number of keys, so that the softmax is as sharp among
    many keys as among few. An MLP makes the bias from the distances of query and key along both axes. Distances have a
    logarithmic scale, on which the longest one in an image of ``pretrain_size`` is about 1.
    """

    #: detectors and segmentors are trained with another one than the classifiers they start from
    changes_with_images = 'img_size'

    def __init__(
        self,
        dim: int,
        num_heads: int,
        reduction: int,
        stride: int,
        pretrain_size: int,
        img_size: int | None,
        attn_drop_rate: float,
        drop_rate: float,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('reduction', reduction)
        check_whole('stride', stride)
        check_whole('pretrain_size', pretrain_size)
        if img_size is not None:
            check_whole('img_size', img_size)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.num_heads = num_heads
        self.reduction = int(reduction)
        #: side of the map of an image of ``pretrain_size``; at least 2, because a single pixel has no distances
        self.side = max(pretrain_size // stride, 2)
        self.trained_side = None if img_size is None else max(img_size // stride, 1)
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        self.settings = dict(pretrain_size=int(pretrain_size))
        if img_size is not None:
            self.settings['img_size'] = int(img_size)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), math.log(math.expm1(1 / 0.24))))
        width = dim // num_heads
        self.query_embedding = nn.Parameter(nn.init.trunc_normal_(torch.zeros(num_heads, 1, width), std=0.02))
        self.cpb_fc1 = nn.Linear(2, HIDDEN)
        self.cpb_fc2 = nn.Linear(HIDDEN, num_heads)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def pooled_bias(self, H: int, W: int, h: int, w: int) -> PooledBias:
        """The bias of h x w pools for the pixels of a map of H x W, see :func:`mmattn.ops.aggregated_attention`.

        With a ``trained_side``, it is the bias of a map of that side, interpolated. Without one, the MLP makes it for
        this map.
        """
        side, of, to = self.trained_side, ((H, h), (W, w)), ((H, h), (W, w))
        if side is not None:
            of = ((side, max(side // self.reduction, 1)),) * 2
        rows, columns = (logarithmic_distances(*axis, side is not None, self.side, self.temperature) for axis in of)
        table = table_of_pairs(self.cpb_fc1, self.cpb_fc2, rows, columns, HIDDEN)
        return bias_by_position(table, of, to, side is not None)


@TOKEN_MIXERS.register_module()
class CosineAttention(CosineQueries):
    """Length-scaled cosine attention to all tokens (section 3.1): TransNeXt's last stage.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        stride: of the map, in pixels of the image.
        pretrain_size: side of the images that the first weights were trained with, in pixels: the scale of positions.
        img_size: side of images, in pixels. The bias by position is made for a map of such an image, and
            interpolated for others, as the released detectors and segmentors were trained. None: the MLP makes it for
            each size, as in the released classifiers; the authors call this extrapolation.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.aggregated_attention.cosine_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    read_by = 'qkv'
    warm_start = cosine_from_plain
    from_pvt = cosine_from_pvt

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        stride: int = 16,
        pretrain_size: int = 224,
        img_size: int | None = None,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, 1, stride, pretrain_size, img_size, attn_drop_rate, drop_rate)
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        own, x = cast_once(self, x)
        return self.drop(own.proj(own.attend_at_once(*own.projected(x)).flatten(3)))

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, H, W, C) -> queries, keys and values, (B, H, W, heads, d). Queries and keys have norm 1."""
        query, key_value = self.projected(x)
        key, value = key_value.unbind(3)
        return of_norm_1(query), of_norm_1(key), value

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """What :meth:`query_key_value` returns -> (B, H, W, heads, d)."""
        return self.attend_at_once(query, torch.stack((key, value), 3))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (B, H, W, C) -> queries (B, H, W, heads, d), keys and values (B, H, W, 2, heads, d)."""
        query, key_value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).split((1, 2), 3)
        return query.squeeze(3), key_value

    def attend_at_once(self, query: Tensor, key_value: Tensor) -> Tensor:
        """What :meth:`projected` returns -> (B, H, W, heads, d)."""
        return cosine_attention(
            query,
            key_value,
            self.temperature.flatten(),
            self.query_embedding.flatten(1),
            self.pooled_bias(*query.shape[1:3], *query.shape[1:3]),
            self.attn_drop_rate if self.training else 0.0,
            self.backend,
        )


@TOKEN_MIXERS.register_module()
class AggregatedAttention(CosineQueries):
    """Attention to the k x k neighbours of a pixel and to pooled tokens, in one softmax (section 3.1): the first three
    stages of TransNeXt.

    Logits are those of :class:`CosineAttention`. Each of the k x k neighbours has a learned bias; pooled tokens have
    the bias by position. To the weights of the neighbours, the layer adds the products of the query with k x k
    learnable tokens, which do not depend on keys and are outside of the softmax. A linear layer, GELU, average pooling
    and a norm make the pooled tokens. Neighbours and pooled tokens have the same projection to keys and values.

    The map is pooled to 1 / r of its sides, rounded down, but at least to one token.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        reduction: r. None: 32 / ``stride``, at least 2, the paper's r.
        kernel_size: side k of the neighbourhood, odd.
        stride, pretrain_size, img_size: see :class:`CosineAttention`.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.aggregated_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    read_by = 'q', 'kv', 'sr'
    warm_start = aggregated_from_plain
    from_pvt = aggregated_from_pvt

    def __init__(
        self,
        dim: int,
        num_heads: int,
        reduction: int | None = None,
        *,
        kernel_size: int = 3,
        stride: int = 16,
        pretrain_size: int = 224,
        img_size: int | None = None,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        check_whole('stride', stride)
        reduction = max(32 // stride, 2) if reduction is None else reduction
        super().__init__(dim, num_heads, reduction, stride, pretrain_size, img_size, attn_drop_rate, drop_rate)
        check_odd('kernel_size', kernel_size)
        self.settings['reduction'] = self.reduction
        taps, width = kernel_size**2, dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.sr = PatchConv2d(dim, dim, 1)
        self.norm = nn.LayerNorm(dim)
        self.relative_pos_bias_local = nn.Parameter(nn.init.trunc_normal_(torch.zeros(num_heads, taps), std=0.0004))
        self.learnable_tokens = nn.Parameter(nn.init.trunc_normal_(torch.zeros(num_heads, width, taps), std=0.02))
        self.learnable_bias = nn.Parameter(torch.zeros(num_heads, 1, taps))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        own, x = cast_once(self, x)
        return self.drop(own.proj(own.attend_at_once(*own.projected(x)).flatten(3)))

    def query_key_value(self, x: Tensor) -> tuple[Tensor, ...]:
        """x: (B, H, W, C) -> queries, keys and values (B, H, W, heads, d), those of pools (B, h, w, heads, d). Queries
        and keys have norm 1."""
        q, key_value, pooled = self.projected(x)
        (k, v), (pooled_k, pooled_v) = key_value.unbind(3), pooled.unbind(3)
        return of_norm_1(q), of_norm_1(k), v, of_norm_1(pooled_k), pooled_v

    def attend(self, query: Tensor, key: Tensor, value: Tensor, pooled_key: Tensor, pooled_value: Tensor) -> Tensor:
        """What :meth:`query_key_value` returns -> (B, H, W, heads, d)."""
        return self.attend_at_once(query, torch.stack((key, value), 3), torch.stack((pooled_key, pooled_value), 3))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, H, W, C) -> queries (B, H, W, heads, d), keys and values (B, H, W, 2, heads, d), of pools, too."""
        h, w = (pooled_size(size, self.reduction) for size in x.shape[1:3])
        pooled = normed(self.norm, pool_to(F.gelu(self.sr(x)), h, w))
        key_value, pooled = (self.kv(each).unflatten(-1, (2, self.num_heads, -1)) for each in (x, pooled))
        return self.q(x).unflatten(-1, (self.num_heads, -1)), key_value, pooled

    def attend_at_once(self, query: Tensor, key_value: Tensor, pooled: Tensor) -> Tensor:
        """What :meth:`projected` returns -> (B, H, W, heads, d)."""
        return aggregated_attention(
            query,
            key_value,
            pooled,
            self.temperature.flatten(),
            self.query_embedding.flatten(1),
            self.relative_pos_bias_local,
            self.pooled_bias(*query.shape[1:3], *pooled.shape[1:3]),
            self.learnable_tokens,
            self.learnable_bias.flatten(1),
            self.attn_drop_rate if self.training else 0.0,
            self.backend,
        )
