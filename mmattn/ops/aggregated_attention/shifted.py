"""Aggregated attention over shifted views of the map, on any device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import without_autocast
from ..elsa import neighbourhood_products, neighbourhood_sum
from ..elsa.reference import side
from ..tracing import is_plain
from .reference import PooledBias, cosine_queries, inside_map, of_norm_1

#: numbers of attention weights in memory at a time, for inference
MAX_WEIGHTS = 2**22


def aggregated_attention_shifted(
    query: Tensor,
    key_value: Tensor,
    pooled: Tensor,
    temperature: Tensor,
    embedding: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    tokens: Tensor,
    token_bias: Tensor,
    dropout_p: float,
) -> Tensor:
    """``aggregated_attention_reference``, in inference for some rows of queries at a time."""
    (key, value), (pooled_key, pooled_value) = key_value.unbind(3), pooled.flatten(1, 2).unbind(2)
    B, H, W, heads, d = query.shape
    taps, M = bias.shape[1], pooled_key.shape[1]
    query, added = cosine_queries(query, temperature, embedding, tokens, token_bias, M)
    key, pooled_key = of_norm_1(key), of_norm_1(pooled_key)
    outside = ~inside_map(H, W, taps, query.device)[:, :, None]
    with without_autocast(query):
        logits = neighbourhood_products(query, key, side(taps))
        logits = (logits + bias.to(logits)).masked_fill(outside, -torch.inf)
    pooled_key, pooled_value = (x.transpose(1, 2).to(value.dtype) for x in (pooled_key, pooled_value))

    def attend(rows: slice) -> tuple[Tensor, Tensor]:
        """Weights (B, rows, W, heads, taps) of the neighbours, and what comes of the pooled tokens."""
        some, local = query[:, rows], logits[:, rows]
        some = some.flatten(1, 2).transpose(1, 2).to(value.dtype)
        local = local.flatten(1, 2).transpose(1, 2)  # (B, heads, N, taps)
        with without_autocast(query):
            by_position = pooled_bias(rows).transpose(2, 3).flatten(3).flatten(1, 2)
            far = (some @ pooled_key.mT).to(local) + by_position.to(local)
            weights = F.dropout(torch.cat((local, far), -1).softmax(-1), dropout_p).to(value.dtype)
            near, far = weights.split((taps, M), -1)
            found = near, far @ pooled_value
        return tuple(x.transpose(1, 2).unflatten(1, (-1, W)) for x in found)

    rows = H
    if not torch.is_grad_enabled() and is_plain(query):
        rows = max(1, MAX_WEIGHTS // max(1, B * heads * W * (taps + M)))
    if rows >= H:
        weights, out = attend(slice(None))
    else:
        parts = [attend(slice(top, top + rows)) for top in range(0, H, rows)]
        weights, out = (torch.cat(each, 1) for each in zip(*parts))
    return neighbourhood_sum(weights + added.to(weights), value.flatten(3)).unflatten(3, (heads, d)) + out
