import torch
import torch.nn.functional as F
from torch import Tensor


def biased_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_p: float = 0.0) -> Tensor:
    """torch's ``scaled_dot_product_attention`` with a bias of the logits, which must be finite.

    torch has no fused kernel on the CPU if the bias needs a gradient. Its products for that case also scale the keys,
    and look for rows of logits that are minus infinity. The products here do neither.

    Args:
        query: (B, heads, N, d).
        key: (B, heads, M, d).
        value: (B, heads, M, d).
        bias: (1 or B, 1 or heads, N, M), of the dtype of ``query``; None: none.
        dropout_p: probability of dropping an attention weight.

    Returns:
        (B, heads, N, d).
    """
    trained = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    if not trained or query.device.type != 'cpu' or query.dtype != torch.float32:
        return F.scaled_dot_product_attention(query, key, value, bias, dropout_p)
    # Products of views would copy them, and the backward pass would copy them again.
    query, key, value = query * query.shape[-1] ** -0.5, key.contiguous(), value.contiguous()
    return F.dropout((query @ key.mT + bias).softmax(-1), dropout_p) @ value
