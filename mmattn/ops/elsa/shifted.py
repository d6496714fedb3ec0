"""Sums over neighbourhoods as sums of shifted views of a map, on any device."""

import itertools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tracing import is_tracing, is_transforming
from .reference import side


def elsa_attention_shifted(
    logits: Tensor, value: Tensor, ghost_mul: Tensor | None, ghost_add: Tensor | None, dilation: int, dropout_p: float
) -> Tensor:
    """The same sum over k * k shifted views of the zero-padded value map, without a copy per neighbour.

    The static part of equation 8 does not depend on the pixel, so it is a depth-wise convolution of the value map.
    """
    return summed(F.dropout(logits.softmax(-1), dropout_p), value, *by_channel(ghost_mul, ghost_add), dilation)


def summed(weights: Tensor, value: Tensor, mul: Tensor | None, add: Tensor | None, dilation: int) -> Tensor:
    """``sum_j (weights[..., j] * mul[j] + add[j]) * shift_j(value)``, see ``neighbourhood_sum``. add: (C, k * k), None.

    In a graph, torch differentiates, fuses or exports the single steps.
    """
    heads = weights.shape[-2]
    if mul is not None:  # (taps, heads, C / heads) or (taps, B, 1, 1, heads, C / heads)
        mul = mul.to(value.dtype).movedim(-1, 0).unflatten(-1, (heads, -1))
        mul = mul if mul.dim() == 3 else mul[:, :, None, None]
    # Neighbours come first, so that each step of the sum reads one contiguous map.
    weights = weights.to(value.dtype).permute(4, 0, 1, 2, 3).contiguous()
    shifted_sum = _shifted_sum if is_tracing() or is_transforming() else _ShiftedSum.apply
    out = shifted_sum(weights, value.unflatten(-1, (heads, -1)), mul, dilation).flatten(-2)
    return out if add is None else out + static_sum(value, add, dilation)


def static_sum(value: Tensor, add: Tensor, dilation: int) -> Tensor:
    """``sum_j add[j] * shift_j(value)``, a depth-wise convolution; value: (B, H, W, C), add: (C, k * k)."""
    k = side(add.shape[-1])
    kernel = add.to(value.dtype).view(-1, 1, k, k)
    x = value.permute(0, 3, 1, 2)
    return F.conv2d(x, kernel, padding=dilation * (k // 2), dilation=dilation, groups=len(add)).permute(0, 2, 3, 1)


def by_channel(*ghosts: Tensor | None) -> Iterator[Tensor | None]:
    """Ghost matrices (C, k, k) -> (C, k * k)."""
    return (None if ghost is None else ghost.flatten(1) for ghost in ghosts)


def _shifted_sum(attention: Tensor, value: Tensor, mul: Tensor | None, dilation: int) -> Tensor:
    """``sum_j attention[j] * mul[j] * shift_j(value)``.

    attention: (taps, B, H, W, heads); value: (B, H, W, heads, d); mul: (taps, heads, d), (taps, B, 1, 1, heads, d) or
    None.
    """
    # Half-precision sums of k * k terms are kept in float32.
    out = torch.zeros_like(
        value, dtype=torch.promote_types(value.dtype, torch.float32), memory_format=torch.contiguous_format
    )
    zero = value.new_zeros(())
    # vmap cannot write batched numbers into a tensor that is not.
    add_product = torch.addcmul if is_tracing() or is_transforming() else Tensor.addcmul_
    for j, neighbour in enumerate(_neighbours(_pad(value, len(attention), dilation), value.shape, dilation)):
        weight = attention[j].unsqueeze(-1)
        # addcmul is a product that counts of operations see.
        out = add_product(out, weight if mul is None else torch.addcmul(zero, weight, mul[j]), neighbour)
    return out.to(value.dtype)


class _ShiftedSum(torch.autograd.Function):
    """``_shifted_sum`` whose backward pass makes no copy per neighbour either."""

    @staticmethod
    def forward(ctx, attention: Tensor, value: Tensor, mul: Tensor | None, dilation: int) -> Tensor:
        ctx.save_for_backward(attention, value, mul)
        ctx.dilation = dilation
        return _shifted_sum(attention, value, mul, dilation)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, value, mul = ctx.saved_tensors
        grad = grad.contiguous()
        padded = _pad(value, len(attention), ctx.dilation)
        grad_padded = torch.zeros_like(padded, dtype=torch.promote_types(value.dtype, torch.float32))
        grad_attention = torch.empty_like(attention)
        grad_mul = None if mul is None else torch.empty_like(mul)
        views = zip(_neighbours(padded, value.shape, ctx.dilation), _neighbours(grad_padded, value.shape, ctx.dilation))
        for j, (neighbour, grad_neighbour) in enumerate(views):
            weight = attention[j].unsqueeze(-1)
            product = grad * neighbour
            if mul is None:
                grad_attention[j] = product.sum(-1)
                grad_neighbour.addcmul_(weight, grad)
            else:
                grad_attention[j] = (product * mul[j]).sum(-1)
                grad_mul[j] = (product * weight).sum_to_size(mul[j].shape)
                grad_neighbour.addcmul_(weight * mul[j], grad)
        pad_h, pad_w = ((p - n) // 2 for p, n in zip(padded.shape[1:3], value.shape[1:3]))
        grad_value = grad_padded[:, pad_h : pad_h + value.shape[1], pad_w : pad_w + value.shape[2]]
        return grad_attention, grad_value.to(value.dtype), grad_mul, None


def neighbourhood_products(query: Tensor, key: Tensor, kernel_size: int) -> Tensor:
    """:math:`q_i k_j` for all neighbours j, zero outside the map, without a copy per neighbour.

    query, key: (B, H, W, heads, d) -> (B, H, W, heads, k * k), in at least float32.
    """
    zero = query.new_zeros((), dtype=torch.promote_types(query.dtype, torch.float32)).expand_as(query)
    neighbours = _neighbours(_pad(key, kernel_size**2, 1), key.shape, 1)
    # addcmul is a product that counts of operations see.
    return torch.stack([torch.addcmul(zero, query, neighbour).sum(-1) for neighbour in neighbours], -1)


def neighbourhood_shift(x: Tensor, dilation: int = 1) -> Tensor:
    """(B, H, W, heads, k * k) -> the same shape: for each neighbour j the number of j in the map at j, zero outside."""
    H, W, taps = x.shape[1], x.shape[2], x.shape[-1]
    offsets = itertools.product(range(0, side(taps) * dilation, dilation), repeat=2)
    maps = zip(_pad(x, taps, dilation).unbind(-1), offsets)
    return torch.stack([numbers[:, row : row + H, column : column + W] for numbers, (row, column) in maps], -1)


def _pad(value: Tensor, taps: int, dilation: int) -> Tensor:
    border = dilation * (side(taps) // 2)
    return F.pad(value, (0, 0, 0, 0, border, border, border, border))


def _neighbours(padded: Tensor, shape: torch.Size, dilation: int) -> Iterator[Tensor]:
    """The k * k shifted views, row-major, of a padded (B, H + 2p, W + 2p, heads, d) map."""
    H, W = shape[1:3]
    for y in range(0, padded.shape[1] - H + 1, dilation):
        for x in range(0, padded.shape[2] - W + 1, dilation):
            yield padded[:, y : y + H, x : x + W]
