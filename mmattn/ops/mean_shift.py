"""The mean-shift operator: the bracket of equation 12 of "Mean-Shift Feature Transformer".

``mean_shift_attention`` is what layers call. It checks its arguments, picks a path in ``_select`` and nothing else asks
where it runs. Every path takes the arguments of ``mean_shift_attention_reference``, which stays the truth for tests.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_shift_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""The shift of every probe towards the mean of the values around its query, by a Gaussian kernel.

    .. math::
        \sum_j \mathrm{softmax}_j\Big(-\frac{\|k_j - q_i\|^2}{2 \sqrt d} + \mathrm{bias}_{ij}\Big) v_j - p_i

    The term in :math:`\|q_i\|^2` is the same for all keys, so the softmax cancels it and the fast paths leave it out.

    Args:
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, d).
        probe: (B, heads, N, d); None leaves the weighted mean as it is ("Gauss-Orig." of table 3).
        bias: of the logits, (1 or B, 1 or heads, N, M); None stands for zeros, with no N x M matrix in memory.
        dropout_p: probability with which an attention weight is dropped.

    Returns:
        (B, heads, N, d), of the dtype of ``value``.

    Raises:
        ValueError: if shapes do not fit each other.
    """
    _check(query, key, value, probe, bias)
    path = _select(key, bias)
    return path(query, key, value, probe, bias, dropout_p)


def mean_shift_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Equation 12 as it is written, with every pair's distance; temperature as below equation 1."""
    distance = (key.unsqueeze(-3) - query.unsqueeze(-2)).square().sum(-1)  # (B, heads, N, M)
    logits = -distance / 2 / math.sqrt(query.shape[-1])
    if bias is not None:
        logits = logits + bias
    out = F.dropout(logits.softmax(-1), dropout_p).to(value.dtype) @ value
    return out if probe is None else out - probe


def mean_shift_attention_channels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Fused attention with half the squared key norm as further channels of the keys: (q, 1) . (k, -|k|^2 / 2).

    As a bias of the logits, the norm would keep fused attention out of the backward pass on the CPU and in need of an
    N x M matrix on the GPU. It takes two channels, so that half precision neither overflows nor rounds it to what |k|^2
    leaves of its digits: a coarse one in units of 2048, and the rest, which also carries all of the gradient.
    Heads are filled up to a multiple of eight channels, which fused kernels are made for.
    """
    d = query.shape[-1]
    # In this unit fp16 holds norms up to 2048 * 65504, and what it rounds off them. No global: those are inputs of
    # torch.compile's graph, which recomputed blocks fail to find.
    unit = 2048.0
    norm = -_half_square(key)
    coarse = (norm / unit).clamp(min=torch.finfo(key.dtype).min).to(key.dtype).detach()
    rest = (norm - unit * coarse.to(norm.dtype)).clamp(min=torch.finfo(key.dtype).min).to(key.dtype)
    fill = -(d + 2) % 8
    query = torch.cat(
        (
            query,
            torch.full_like(query[..., :1], unit),
            torch.ones_like(query[..., :1]),
            query.new_zeros(*query.shape[:-1], fill),
        ),
        -1,
    )
    key = torch.cat((key, coarse, rest, key.new_zeros(*key.shape[:-1], fill)), -1)
    value = F.pad(value, (0, 2 + fill))
    out = F.scaled_dot_product_attention(
        query, key, value, None if bias is None else bias.to(query.dtype), dropout_p, scale=d**-0.5
    )[..., :d]
    return out if probe is None else out - probe


def mean_shift_attention_bias(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    probe: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention with the key norms added to a bias of the logits: the shorter way where that matrix exists anyway,
    but as rough as its dtype."""
    key = key.contiguous()  # for the norm's backward would keep what the key may be a view of, all projections
    norm = -_half_square(key).transpose(-1, -2) * query.shape[-1] ** -0.5  # (B, heads, 1, M)
    bias = (norm if bias is None else bias + norm).to(query.dtype)
    out = F.scaled_dot_product_attention(query, key, value, bias, dropout_p)
    return out if probe is None else out - probe


def _half_square(key: Tensor) -> Tensor:
    """|k|^2 / 2, (B, heads, M, 1), in at least float32."""
    return key.to(torch.promote_types(key.dtype, torch.float32)).square().sum(-1, keepdim=True) / 2


def _select(key: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """The one place that decides which path serves a dtype, with or without a bias."""
    if bias is None or key.dtype in (torch.float16, torch.bfloat16):
        return mean_shift_attention_channels
    return mean_shift_attention_bias


def _check(query: Tensor, key: Tensor, value: Tensor, probe: Tensor | None, bias: Tensor | None) -> None:
    if query.dim() != 4 or key.shape != value.shape or key.shape != (*query.shape[:2], key.shape[2], query.shape[3]):
        raise ValueError(
            f'query must be (B, heads, N, d), key and value (B, heads, M, d), not {tuple(query.shape)}, '
            f'{tuple(key.shape)} and {tuple(value.shape)}'
        )
    if probe is not None and probe.shape != query.shape:
        raise ValueError(f'probe must be of the shape of query, {tuple(query.shape)}, not {tuple(probe.shape)}')
    B, heads, N, _ = query.shape
    if bias is not None and (
        bias.dim() != 4
        or bias.shape[0] not in (1, B)
        or bias.shape[1] not in (1, heads)
        or bias.shape[2:] != (N, key.shape[2])
    ):
        raise ValueError(f'bias must be (1 or {B}, 1 or {heads}, {N}, {key.shape[2]}), not {tuple(bias.shape)}')
