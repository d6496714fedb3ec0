import torch
import torch.nn.functional as F
from torch import Tensor


def biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_p: float = 0.0, scale: float | None = None
) -> Tensor:
    """torch's ``scaled_dot_product_attention`` with a bias of the logits, which must be finite.

    torch has no fused kernel on the CPU if the bias needs a gradient. Its products for that case also scale the keys,
    compute in float32 what is bfloat16, and look for rows of logits that are minus infinity. The products here do none
    of this.

    Args:
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, v).
        bias: (1 or B, 1 or heads, N, M), of the dtype of ``query``; None: none.
        dropout_p: probability of dropping an attention weight.
        scale: of the products; None: d ** -0.5.

    Returns:
        (B, heads, N, v).
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if not is_multiplied(query, bias):
        return F.scaled_dot_product_attention(query, key, value, bias, dropout_p, scale=scale)
    # Products of views would copy them, and the backward pass would copy them again.
    query, key, value = query * scale, key.contiguous(), value.contiguous()
    return F.dropout((query @ key.mT + bias).softmax(-1), dropout_p) @ value


def is_multiplied(query: Tensor, bias: Tensor | None) -> bool:
    """Whether ``biased_attention`` multiplies matrices itself, so that heads of any width are fast."""
    trained = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    return trained and query.device.type == 'cpu' and query.dtype in (torch.float32, torch.bfloat16)
