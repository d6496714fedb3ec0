"""Cosine attention to all tokens by plain attention, on any device."""

from functools import partial

from torch import Tensor

from ..attention import attention
from ..heads import join_heads
from .reference import of_norm_1, scaled
from .table import PooledBias


def _attend(
    query: Tensor,
    key_value: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    position_bias: PooledBias,
    dropout_p: float,
    backend: str,
) -> Tensor:
    key, value = key_value.unbind(3)
    query = scaled(of_norm_1(query), temperature, embedding, query.shape[1] * query.shape[2])
    bias = position_bias.of_rows(slice(None)).transpose(2, 3).flatten(3).flatten(1, 2)[None]
    q, k, v = (x.to(value.dtype).flatten(1, 2).transpose(1, 2) for x in (query, of_norm_1(key), value))
    return join_heads(attention(q, k, v, bias.to(value.dtype), dropout_p, scale=1.0, backend=backend)).view(value.shape)


cosine_attention_reference = partial(_attend, backend='reference')
cosine_attention_fused = partial(_attend, backend='fused')
