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
from .attention import attention_fused
from .backend import check_maps, named_backend
from .heads import join_heads, split_heads


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
        keys: G maps (B, h_g, w_g, C / G).
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
    """The same by plain attention of each group."""
    heads, scale = num_heads // len(keys), (query.shape[-1] // num_heads) ** -0.5
    groups = ([split_heads(x, heads) for x in group] for group in zip(query.chunk(len(keys), -1), keys, values))
    mixed = [join_heads(attention_fused(*group, None, dropout_p, scale)) for group in groups]
    return torch.cat(mixed, -1).view(query.shape)


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
