"""What GSA's operators take and compute: equations 4 to 7 as they are written."""

import math

import torch
from torch import Tensor

from .table import fit_table


def content_attention_reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Equation 4 as it is written: the softmax of the keys is over all pixels."""
    weights = key.flatten(1, 2).softmax(1).view_as(key)
    context = torch.einsum('bhwnk,bhwnv->bnkv', weights, value.to(key.dtype))
    return torch.einsum('bhwnk,bnkv->bhwnv', query, context)


def axial_attention_reference(
    query: Tensor, value: Tensor, table: Tensor, dim: int, beyond: str, key: Tensor | None = None, softmax: bool = False
) -> Tensor:
    """Equations 5 to 7 as they are written, along columns (dim 1) or rows (dim 2).

    A product with the re-indexing tensor would spread NaN and infinity of one position to all, because 0 * inf is NaN.
    """
    if dim == 2:
        query, value = query.transpose(1, 2), value.transpose(1, 2)
        key = None if key is None else key.transpose(1, 2)
    length = query.shape[1]
    if beyond == 'stretch' and length > len(table) // 2 + 1:
        table = fit_table(table, length, beyond)
    L = len(table) // 2 + 1
    index = torch.arange(length, device=table.device)
    offset = index - index[:, None]  # (x, i)
    far = (offset.abs() >= L)[..., None]
    positions = table[offset.clamp(1 - L, L - 1) + L - 1].masked_fill(far, 0).to(query.dtype)  # eq. 5 and 6, (x, i, k)
    scores = torch.einsum('bxynk,xik->bxyin', query, positions)  # eq. 7
    far = far[:, None]  # (x, 1, i, 1)

    def near(x: Tensor) -> Tensor:
        """(b, i, y, n, c) -> (b, x, y, i, n, c) of the pixels that a query attends to, or all."""
        return x.transpose(1, 2)[:, None].masked_fill(far[..., None], 0)

    if key is not None:
        scores = scores + torch.einsum('bxynk,bxyink->bxyin', query, near(key))
    scores = scores.masked_fill(far, -math.inf).softmax(3) if softmax else scores.masked_fill(far, 0)
    out = torch.einsum('bxyin,bxyinv->bxynv', scores, near(value.to(query.dtype)))
    return out.transpose(1, 2) if dim == 2 else out


def check_lines(query: Tensor, value: Tensor, table: Tensor, dim: int) -> None:
    """Check what attention along lines takes: (B, H, W, heads, k), (B, H, W, heads, v), (2L - 1, k) and 1 or 2.

    Raises:
        ValueError: if they do not fit each other.
    """
    if query.dim() != 5 or value.dim() != 5 or value.shape[:-1] != query.shape[:-1]:
        raise ValueError(
            f'query must be (B, H, W, heads, k) and value (B, H, W, heads, v), not {tuple(query.shape)} '
            f'and {tuple(value.shape)}'
        )
    if table.dim() != 2 or table.shape[0] % 2 == 0 or table.shape[1] != query.shape[-1]:
        raise ValueError(f'table must be (2L - 1, {query.shape[-1]}), not {tuple(table.shape)}')
    if not isinstance(dim, int) or dim not in (1, 2):
        raise ValueError(f'dim must be 1 (columns) or 2 (rows), not {dim!r}')
