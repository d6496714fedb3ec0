"""Plain attention: equation 1 of "Attention Is All You Need", with a bias of the logits.

Layers call ``attention``. Every backend takes the arguments of ``attention_reference``, which tests compare with.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import check_maps, named_backend
from .heads import join_heads, split_heads
from .tracing import is_tracing


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""Multi-head attention of tokens to tokens.

    .. math::
        \mathrm{softmax}\Big(\frac{Q K^T}{\sqrt{d}} + \mathrm{bias}\Big) V

    Args:
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, v).
        bias: of the logits, (1 or B, 1 or heads, N, M), finite, of the dtype of ``query``; None: none.
        dropout_p: probability of dropping an attention weight.
        scale: of the products; None: d ** -0.5.
        backend: 'reference' or 'fused' (torch's fused attention, which keeps no attention weights in memory); None
            chooses 'fused'.

    Returns:
        (B, heads, N, v).

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown.
    """
    check_maps(dropout_p, query=query, key=key, value=value, bias=bias)
    if not is_tracing():  # A graph would ask whether sizes are equal.
        _check(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    function = named_backend(BACKENDS, 'fused' if backend is None else backend)
    return function(query, key, value, bias, dropout_p, scale)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str | None = None,
) -> Tensor:
    """:func:`attention` of tokens or maps, (B, ..., C) each, whose channels are split into heads; the result has the
    shape of ``query``."""
    heads = (split_heads(each, num_heads) for each in (query, key, value))
    return join_heads(attention(*heads, bias, dropout_p, backend=backend)).view(query.shape)


def attention_reference(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_p: float, scale: float
) -> Tensor:
    """The equation as it is written."""
    logits = query @ key.mT * scale
    weights = (logits if bias is None else logits + bias).softmax(-1)
    return F.dropout(weights, dropout_p) @ value


def attention_fused(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_p: float, scale: float
) -> Tensor:
    """The same by torch's fused attention.

    torch has no fused kernel on the CPU if the bias needs a gradient. Its products for that case also scale the keys,
    compute in float32 what is bfloat16, and look for rows of logits that are minus infinity. The products here do none
    of this.
    """
    if is_multiplied(query, bias):
        # Products of views would copy them, and the backward pass would copy them again.
        query, key, value = query * scale, key.contiguous(), value.contiguous()
        return F.dropout((query @ key.mT + bias).softmax(-1), dropout_p) @ value
    parts = 1 if bias is not None else _query_parts(query)
    if parts == 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout_p, scale=scale)
    query = query.transpose(1, 2).unflatten(1, (parts, -1)).flatten(0, 1).transpose(1, 2)
    key, value = (x.repeat_interleave(parts, 0) for x in (key, value))
    out = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, scale=scale)
    return out.transpose(1, 2).unflatten(0, (-1, parts)).flatten(1, 2).transpose(1, 2)


def is_multiplied(query: Tensor, bias: Tensor | None) -> bool:
    """Whether 'fused' multiplies matrices itself, so that heads of any width are fast."""
    trained = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    return trained and query.device.type == 'cpu' and query.dtype in (torch.float32, torch.bfloat16)


def _query_parts(query: Tensor) -> int:
    """Into how many parts to split queries so that no thread is idle; each part becomes a sample.

    On the CPU, the backward pass of torch's attention gives a thread one head of one sample. Early stages have few
    heads.
    """
    if query.device.type != 'cpu' or not torch.is_grad_enabled() or is_tracing():
        return 1
    idle = torch.get_num_threads() // max(query.shape[0] * query.shape[1], 1)
    return math.gcd(query.shape[2], 2 ** max(0, idle.bit_length() - 1))


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    wanted = (*query.shape[:2], key.shape[2], query.shape[3]) if query.dim() == key.dim() == 4 else ()
    if key.shape != wanted or value.shape[:-1] != wanted[:-1]:
        raise ValueError(
            'query, key and value must be (B, heads, N, d), (B, heads, M, d) and (B, heads, M, v), not '
            f'{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}'
        )


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': attention_reference, 'fused': attention_fused}
