"""What aggregated attention takes and computes: the equations of section 3.1 as they are written."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import without_autocast
from ..elsa.reference import side
from .table import PooledBias


def aggregated_attention_reference(
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
    """The equations as they are written, over k * k unfolded copies of keys and values."""
    dtype, taps = key_value.dtype, bias.shape[1]
    exact = torch.promote_types(dtype, torch.float32)
    (key, value), (pooled_key, pooled_value) = key_value.unbind(3), pooled.flatten(1, 2).unbind(2)
    query, added = cosine_queries(query, temperature, embedding, tokens, token_bias, pooled_key.shape[1])
    pooled_key, pooled_value = of_norm_1(pooled_key), pooled_value.to(exact)
    key, value = (_unfolded(x.to(exact), taps) for x in (of_norm_1(key), value))  # (B, H, W, heads, d, taps)
    inside = inside_map(*query.shape[1:3], taps, query.device)[:, :, None]
    with without_autocast(query):
        logits = torch.einsum('bhwnd,bhwndj->bhwnj', query, key) + bias.to(exact)
        far = torch.einsum('bhwnd,bmnd->bhwnm', query, pooled_key)
        far = far + pooled_bias.of_rows(slice(None)).to(exact).permute(1, 3, 0, 2, 4).flatten(3)
        weights = torch.cat((logits.masked_fill(~inside, -torch.inf), far), -1).softmax(-1)
        weights = F.dropout(weights, dropout_p)
        out = torch.einsum('bhwnj,bhwndj->bhwnd', weights[..., :taps] + added.to(exact), value)
        return (out + torch.einsum('bhwnm,bmnd->bhwnd', weights[..., taps:], pooled_value)).to(dtype)


def cosine_queries(
    query: Tensor, temperature: Tensor, embedding: Tensor, tokens: Tensor, token_bias: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Queries as they are multiplied with keys of norm 1, (B, H, W, heads, d), in float32 at least; and the weights
    that are added to those of the neighbours, (B, H, W, heads, k * k). count: of pooled tokens."""
    unit, (H, W), taps = of_norm_1(query), query.shape[1:3], tokens.shape[-1]
    keys = inside_map(H, W, taps, query.device).sum(2) + count
    added = torch.einsum('bhwnd,ndj->bhwnj', unit, tokens.to(unit.dtype)) + token_bias
    return scaled(unit, temperature, embedding, keys[..., None, None]), added


def of_norm_1(x: Tensor) -> Tensor:
    """Vectors (..., d) divided by their norm, in float32 at least.

    A vector with a norm below 1e-6 becomes zero and has no gradient. Padding has such vectors in an untrained model.
    The release divides them by 1e-12, so their gradients are so large that clipping takes all others away.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm.masked_fill(norm < 1e-6, torch.inf)


def scaled(unit: Tensor, temperature: Tensor, embedding: Tensor, keys: Tensor | int) -> Tensor:
    """Queries with their embedding, temperature and the logarithm of the number of keys.

    Args:
        unit: (..., heads, d), of norm 1.
        temperature: (heads).
        embedding: (heads, d).
        keys: the number of keys, one for all pixels, or of each pixel, (H, W, 1, 1).

    Returns:
        (..., heads, d).
    """
    length = (keys + unit.new_zeros(())).log()  # a tensor of the queries' dtype, also of a number
    return (unit + embedding) * F.softplus(temperature)[:, None] * length


def inside_map(height: int, width: int, taps: int, device: torch.device) -> Tensor:
    """(height, width, taps): whether the neighbours of a pixel are inside the map."""
    reach = side(taps) // 2
    offsets = torch.arange(-reach, reach + 1, device=device)
    rows, columns = (torch.arange(size, device=device)[:, None] + offsets for size in (height, width))
    rows, columns = ((place >= 0) & (place < size) for place, size in ((rows, height), (columns, width)))
    return (rows[:, None, :, None] & columns[None, :, None, :]).flatten(2)


def _unfolded(x: Tensor, taps: int) -> Tensor:
    """A map (B, H, W, heads, d) -> the neighbours of each pixel, (B, H, W, heads, d, taps)."""
    k = side(taps)
    copies = F.unfold(x.flatten(3).permute(0, 3, 1, 2), k, padding=k // 2)
    return copies.view(x.shape[0], *x.shape[3:], taps, *x.shape[1:3]).permute(0, 4, 5, 1, 2, 3)
