"""Aggregated attention of "TransNeXt: Robust Foveal Visual Perception for Vision Transformers": the neighbours of a
pixel and the pooled tokens of the map in one softmax.

Layers call ``aggregated_attention``. Every backend takes the arguments of ``aggregated_attention_reference``, which
tests compare with.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .backend import check_maps, named_backend, without_autocast
from .elsa import neighbourhood_products, neighbourhood_sum
from .elsa.reference import side
from .recompute import recompute
from .tracing import is_plain, is_tracing

#: numbers of attention weights, or of hidden maps, in memory at a time, for inference
MAX_WEIGHTS = 2**22
#: from rows of the map to the bias of their queries and all pooled tokens, (heads, rows, W, M)
PooledBias = Callable[[slice], Tensor]


def aggregated_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    added: Tensor,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    r"""Attend to the k x k neighbours of every pixel and to M pooled tokens (section 3).

    .. math::
        (a_i, p_i) = \mathrm{softmax}_{j, m}\big(q_i k_j + b_{j-i}, \ q_i \hat k_m + \hat b_{im}\big), \qquad
        f_i = \sum_{j \in \Theta_i} (a_{ij} + t_{ij}) v_j + \sum_m p_{im} \hat v_m

    Neighbours are in row-major order. Those outside the map have no share in the softmax, and no value. The products
    are not scaled.

    Args:
        query, key, value: (B, H, W, heads, d).
        pooled_key, pooled_value: (B, M, heads, d).
        bias: (heads, k * k), k odd, of the neighbours.
        pooled_bias: a function of a slice of rows. It returns the bias of all pooled tokens for their pixels, (heads,
            rows, W, M). So inference needs no bias of the whole map in memory.
        added: (B, H, W, heads, k * k), the weights t, which are added to those of the softmax.
        dropout_p: probability of dropping a weight of the softmax.
        backend: 'reference' or 'shifted', which makes no copy per neighbour. Its sum over neighbours is in C++ on the
            CPU, without second derivatives. None chooses 'shifted'.

    Returns:
        (B, H, W, heads, d), of the dtype of ``value``. The softmax is computed in float32 at least.

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown.
    """
    maps = dict(query=query, key=key, value=value, pooled_key=pooled_key, pooled_value=pooled_value)
    check_maps(dropout_p, **maps, bias=bias, added=added)
    B, *_, heads, d = shape = query.shape
    taps, pooled = bias.shape[-1], (B, *pooled_key.shape[1:2], heads, d)
    if not is_tracing() and (
        not len(shape) == len(added.shape) == 5
        or not shape == key.shape == value.shape
        or not pooled == pooled_key.shape == pooled_value.shape
        or bias.shape != (heads, side(taps) ** 2)
        or added.shape != (*shape[:4], taps)
    ):
        given = ', '.join(f'{name} {tuple(x.shape)}' for name, x in {**maps, 'bias': bias, 'added': added}.items())
        raise ValueError(
            'query, key and value must be (B, H, W, heads, d), pooled_key and pooled_value (B, M, heads, d), bias '
            f'(heads, k * k) with odd k and added (B, H, W, heads, k * k), not {given}'
        )
    function = named_backend(BACKENDS, 'shifted' if backend is None else backend)
    return function(query, key, value, pooled_key, pooled_value, bias, pooled_bias, added, dropout_p)


def aggregated_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    added: Tensor,
    dropout_p: float,
) -> Tensor:
    """The equations as they are written, over k * k unfolded copies of keys and values."""
    exact, dtype, taps = torch.promote_types(query.dtype, torch.float32), value.dtype, bias.shape[1]
    key, value = (_unfolded(x.to(exact), taps) for x in (key, value))  # (B, H, W, heads, d, taps)
    inside = inside_map(*query.shape[1:3], taps, query.device)[:, :, None]
    with without_autocast(query):
        logits = torch.einsum('bhwnd,bhwndj->bhwnj', query.to(exact), key) + bias.to(exact)
        pooled = torch.einsum('bhwnd,bmnd->bhwnm', query.to(exact), pooled_key.to(exact))
        pooled = pooled + pooled_bias(slice(None)).to(exact).permute(1, 2, 0, 3)
        weights = torch.cat((logits.masked_fill(~inside, -torch.inf), pooled), -1).softmax(-1)
        weights = F.dropout(weights, dropout_p)
        out = torch.einsum('bhwnj,bhwndj->bhwnd', weights[..., :taps] + added.to(exact), value)
        return (out + torch.einsum('bhwnm,bmnd->bhwnd', weights[..., taps:], pooled_value.to(exact))).to(dtype)


def aggregated_attention_shifted(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pooled_key: Tensor,
    pooled_value: Tensor,
    bias: Tensor,
    pooled_bias: PooledBias,
    added: Tensor,
    dropout_p: float,
) -> Tensor:
    """The same over shifted views of the map, and in inference some rows of queries at a time."""
    B, H, W, heads, d = query.shape
    taps, M = bias.shape[1], pooled_key.shape[1]
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
            pooled = (some @ pooled_key.mT).to(local) + pooled_bias(rows).flatten(1, 2).to(local)
            weights = F.dropout(torch.cat((local, pooled), -1).softmax(-1), dropout_p).to(value.dtype)
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


def table_of_pairs(
    mlp: Callable[[Tensor, Tensor], Tensor], rows: Tensor, columns: Tensor, hidden: int, modules: Sequence[nn.Module]
) -> Tensor:
    """An MLP of all pairs of rows (R) and columns (S) -> (R, S, heads).

    The backward pass computes its hidden map, of ``hidden`` channels, again. Inference has a part of it in memory.
    """
    if torch.is_grad_enabled() or not is_plain(rows):
        return recompute(mlp, rows, columns, modules=modules, random=False, compiled=False)
    parts = rows.split(max(1, MAX_WEIGHTS // (len(columns) * hidden)))
    return torch.cat([mlp(part, columns) for part in parts])


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


BACKENDS: dict[str, Callable[..., Tensor]] = {
    'reference': aggregated_attention_reference,
    'shifted': aggregated_attention_shifted,
}
