"""What neighbourhood attention takes and computes: the equation as it is written."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...arguments import check_odd, check_whole
from ..backend import without_autocast

#: the largest side of a neighbourhood
MOST_NEIGHBOURS = 63


def neighbourhood_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    beyond: Tensor | None,
    kernel_size: int,
    dilation: int,
    dropout_p: float,
) -> Tensor:
    """The equation as it is written, over k * k gathered copies of keys and values."""
    (rows, of_rows), (columns, of_columns) = (
        _neighbours(query.shape[dim], kernel_size, dilation, query.device) for dim in (1, 2)
    )
    exact, dtype = torch.promote_types(query.dtype, torch.float32), value.dtype
    key, value = (
        _gathered(x.to(exact), pixel, rows, columns) for x, pixel in zip((key, value), beyond_of(beyond))
    )  # (B, H, W, k * k, heads, d)
    query = query.to(exact) / query.shape[-1] ** 0.5
    with without_autocast(query):
        logits = torch.einsum('bhwnd,bhwjnd->bhwnj', query, key)
        if bias is not None:
            table = bias.to(exact).index_select(1, of_rows.flatten()).index_select(2, of_columns.flatten())
            table = table.unflatten(2, (-1, kernel_size)).unflatten(1, (-1, kernel_size))  # (heads, H, k, W, k)
            logits = logits + table.permute(1, 3, 0, 2, 4).flatten(-2)
        weights = F.dropout(logits.softmax(-1), dropout_p)
        return torch.einsum('bhwnj,bhwjnd->bhwnd', weights, value).to(dtype)


def _neighbours(size: int, k: int, dilation: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The neighbours (size, k) of each pixel of an axis, and their numbers among 2k - 1 relative positions.

    Neighbours of ``size`` and more are beyond the axis. No decision depends on its size: one graph serves all.
    """
    pixel = torch.arange(size, device=device)
    line, place = pixel % dilation, pixel // dilation
    length = ((size - 1 - line) // dilation + 1).clamp(min=k)  # of each pixel's line, continued
    start = torch.minimum((place - k // 2).clamp(min=0), length - k)
    found = start[:, None] + torch.arange(k, device=device)
    return found * dilation + line[:, None], found - place[:, None] + k - 1


def _gathered(x: Tensor, beyond: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor:
    """A map (B, H, W, heads, d) at rows (H, k) and columns (W, k) -> (B, H, W, k * k, heads, d)."""
    H, W = x.shape[1:3]
    k = rows.shape[1]
    pixel = x.new_zeros(x.shape[3:]) if beyond is None else beyond.to(x)
    # One row and one column beyond the map stand for all.
    x = torch.cat((x, pixel.expand(x.shape[0], 1, W, -1, -1)), 1)
    x = torch.cat((x, pixel.expand(x.shape[0], H + 1, 1, -1, -1)), 2)
    x = x.index_select(1, rows.clamp(max=H).flatten()).unflatten(1, (-1, k))
    x = x.index_select(3, columns.clamp(max=W).flatten()).unflatten(3, (-1, k))
    return x.transpose(2, 3).flatten(3, 4)


def check_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, beyond: Tensor | None, k: int, dilation: int
) -> None:
    """Check what neighbourhood attention takes: see :func:`mmattn.ops.neighbourhood_attention`.

    Raises:
        ValueError: if they do not fit each other.
    """
    if query.dim() != 5 or key.shape != query.shape or value.shape != query.shape:
        raise ValueError(
            'query, key and value must be (B, H, W, heads, d) of one shape, not '
            f'{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}'
        )
    check_parameters(*query.shape[3:], bias, beyond, k, dilation)


def check_parameters(heads: int, d: int, bias: Tensor | None, beyond: Tensor | None, k: int, dilation: int) -> None:
    """Check what :func:`check_attention` does, but for the maps."""
    check_neighbours(k, dilation)
    for name, given, shape in (('bias', bias, (heads, 2 * k - 1, 2 * k - 1)), ('beyond', beyond, (2, heads, d))):
        if given is not None and given.shape != shape:
            raise ValueError(f'{name} must be {shape}, not {tuple(given.shape)}')


def check_neighbours(kernel_size: object, dilation: object) -> None:
    """Check the numbers of a neighbourhood."""
    check_odd('kernel_size', kernel_size)
    check_whole('kernel_size', kernel_size, most=MOST_NEIGHBOURS)
    check_whole('dilation', dilation)


def beyond_of(beyond: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Key and value of pixels beyond the map."""
    return (None, None) if beyond is None else (beyond[0], beyond[1])
