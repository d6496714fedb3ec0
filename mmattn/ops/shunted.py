"""Shunted attention: equation 2 of "Shunted Self-Attention via Multi-Scale Token Aggregation".

Layers call ``shunted_attention``. Every backend takes the arguments of ``shunted_attention_reference``, which tests
compare with.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import check_whole
from .backend import check_maps, named_backend
from .tracing import is_tracing


def shunted_attention(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    num_heads: int,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""Attention whose heads form G groups of equal size; each group has keys and values of its own resolution.

    .. math::
        h_i = \mathrm{softmax}\Big(\frac{Q_i K_i^T}{\sqrt{d}}\Big) V_i

    Args:
        query: (B, H, W, C).
        keys: G maps (B, h_g, w_g, C / G). Plain attention is one map.
        values: likewise, of the sizes of the keys.
        num_heads: heads of all groups together.
        dropout_p: probability of dropping an attention weight.
        backend: 'reference' or 'fused' (torch's fused attention); None chooses 'fused'.

    Returns:
        (B, H, W, C), of the dtype of ``query``: the heads of the first group, then those of the next.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown.
    """
    _check(query, keys, values, num_heads)
    for key, value in zip(keys, values):
        check_maps(dropout_p, query=query, key=key, value=value)
    return named_backend(BACKENDS, 'fused' if backend is None else backend)(query, keys, values, num_heads, dropout_p)


def shunted_attention_reference(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], num_heads: int, dropout_p: float = 0.0
) -> Tensor:
    """Equation 2 as it is written, head by head."""
    B, H, W, C = query.shape
    d = C // num_heads
    queries = iter(query.flatten(1, 2).split(d, -1))
    heads = []
    for key, value in zip(keys, values):
        for k, v in zip(key.flatten(1, 2).split(d, -1), value.flatten(1, 2).split(d, -1)):
            weights = (next(queries) @ k.transpose(1, 2) / math.sqrt(d)).softmax(-1)  # (B, H * W, h * w)
            heads.append(F.dropout(weights, dropout_p) @ v)
    return torch.cat(heads, -1).view(B, H, W, C)


def shunted_attention_fused(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], num_heads: int, dropout_p: float = 0.0
) -> Tensor:
    """The same by torch's fused attention, which keeps no attention weights in memory."""
    groups = len(keys)
    parts = [_attend(q, k, v, num_heads // groups, dropout_p) for q, k, v in zip(query.chunk(groups, -1), keys, values)]
    return torch.cat(parts, -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, num_heads: int, dropout_p: float) -> Tensor:
    """One group. q: (B, H, W, C), k and v: (B, h, w, C) -> (B, H, W, C)."""
    shape = q.shape
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    parts = _query_parts(q, num_heads)
    if parts > 1:
        q = q.unflatten(1, (parts, -1)).flatten(0, 1)
        k, v = (x.repeat_interleave(parts, 0) for x in (k, v))
    heads = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*heads, dropout_p=dropout_p)
    return out.transpose(1, 2).reshape(shape)


def _query_parts(q: Tensor, num_heads: int) -> int:
    """Into how many parts to split queries (B, N, C) so that no thread is idle; each part becomes a sample.

    On the CPU, the backward pass of torch's attention gives a thread one head of one sample. Early stages have few
    heads.
    """
    if q.device.type != 'cpu' or not torch.is_grad_enabled() or is_tracing():
        return 1
    idle = torch.get_num_threads() // max(len(q) * num_heads, 1)
    return math.gcd(q.shape[1], 2 ** max(0, idle.bit_length() - 1))


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': shunted_attention_reference,
    'fused': shunted_attention_fused,
}


def _check(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], num_heads: int) -> None:
    check_whole('num_heads', num_heads)
    groups = len(keys)
    if not groups or len(values) != groups or num_heads % groups or query.shape[-1] % num_heads:
        raise ValueError(
            f'keys and values must be {groups} maps each, one per group of heads, and the number of groups must divide '
            f'{num_heads} heads, and these the {query.shape[-1]} channels of query; there are {len(values)} values'
        )
    for key, value in zip(keys, values):
        wanted = (len(query), *key.shape[1:3], query.shape[-1] // groups)
        if query.dim() != 4 or key.shape != wanted or value.shape != wanted:
            raise ValueError(
                f'query must be (B, H, W, C), keys and values of a group (B, h, w, C / {groups}), not '
                f'{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}'
            )
