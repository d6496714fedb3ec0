"""What the ELSA operator takes and computes: equations 5, 7 and 8 as they are written."""

import torch.nn.functional as F
from torch import Tensor

from ...arguments import check_whole
from ..tracing import is_tracing


def elsa_attention_reference(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """Equations 7 (its softmax), 8 and 5 as they are written, over k * k unfolded copies of the value map."""
    B, H, W, C = value.shape
    heads, taps = logits.shape[-2:]
    k = side(taps)
    h = F.dropout(logits.softmax(-1), dropout_p).to(value.dtype)  # eq. 7
    h_hat = h.repeat_interleave(C // heads, dim=3)  # (B, H, W, C, taps)
    if ghost_mul is not None:
        h_hat = h_hat * ghost_mul.flatten(1)  # eq. 8
    if ghost_add is not None:
        h_hat = h_hat + ghost_add.flatten(1)
    v = F.unfold(value.permute(0, 3, 1, 2), k, dilation=dilation, padding=dilation * (k // 2))
    v = v.view(B, C, taps, H, W).permute(0, 3, 4, 1, 2)  # (B, H, W, C, taps)
    return (h_hat * v).sum(-1)  # eq. 5


def side(taps: int) -> int:
    """k of k * k taps, k odd: the smallest odd number whose square is not less.

    It is counted: torch.compile, where a size changes from call to call, does not trace ``math.isqrt``.
    """
    k = 1
    while k * k < taps:
        k += 2
    return k


def check_neighbourhoods(name: str, weights: Tensor, value: Tensor, dilation: int) -> None:
    """Check what a sum over neighbourhoods takes.

    Args:
        name: of the weights, in messages.
        weights: (B, H, W, heads, k * k), k odd.
        value: (B, H, W, C), C divisible by heads.
        dilation: distance of neighbours, in pixels.

    Raises:
        ValueError: if they do not fit each other.
    """
    if weights.dim() != 5 or value.dim() != 4 or weights.shape[:3] != value.shape[:3]:
        raise ValueError(
            f'{name} must be (B, H, W, heads, k * k) and value (B, H, W, C) of the same B, H and W, '
            f'not {tuple(weights.shape)} and {tuple(value.shape)}'
        )
    heads, taps = weights.shape[-2:]
    C = value.shape[-1]
    if side(taps) ** 2 != taps:
        raise ValueError(f'{name} must hold k * k neighbours with odd k, not {taps}')
    if not C or not heads or C % heads:
        raise ValueError(f'the {C} channels of value do not divide into {heads} heads')
    check_whole('dilation', dilation)


def within(dilation: int, value: Tensor) -> int:
    """The dilation, at most the longer side of a map (B, H, W, C): from there on, all other neighbours are outside."""
    return dilation if is_tracing() else min(dilation, max(*value.shape[1:3], 1))
