"""Attention within (shifted) windows of a projected map: of Swin Transformer, and of MSF-Swin.

On the CPU, layers compute the same from windows of their input, which has fewer channels to move than its projection.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ...arguments import check_whole
from ..any_size import pad_to_multiple
from ..attention import attention
from ..backend import CannotServe, check_maps, check_triton, named_backend, triton_multiplies
from ..heads import join_heads, split_heads
from ..mean_shift import mean_shift_attention
from ..windows import join_windows, mask_for, relative_bias, shifts_of, split_windows

#: what the kernels are for: pixels of a side of the largest windows, and channels of a head
LARGEST = (16, 32), (8, 64)


def window_attention(
    x: Tensor,
    table: Tensor,
    pad: Tensor | None,
    window_size: int,
    shift: int = 0,
    shift_small_maps: bool = True,
    gauss: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Attend to the pixels of the same window: :func:`attention` of softmax weights, or with ``gauss``
    :func:`mean_shift_attention`.

    If windows do not divide the map, it is continued at the bottom and the right. Shifted windows are those of the map
    rolled by the shift; in them, logits of pixels that only the roll made neighbours are less by 100.

    Args:
        x: (B, H, W, 3 or 4, C): query, key and value, and if there is one the probe, which is subtracted.
        table: ((2w - 1) ** 2, heads), the biases of the logits by position of the query minus that of the key.
        pad: (3 or 4 times C), what pixels beyond the map have: the bias of the projection; None: zeros.
        window_size: side w of the windows.
        shift: of the windows, 0 to w - 1 pixels.
        shift_small_maps: whether windows are shifted along an axis of one window.
        backend: 'reference' or 'triton' (GPUs, of 16 bits, sums in float32; without second derivatives, and not for
            torch.func). None chooses 'triton' if it can serve.

    Returns:
        (B, H, W, C).

    Raises:
        ValueError: if shapes do not fit each other, or the backend is unknown or cannot run here.
    """
    check_maps(x=x, table=table, pad=pad)
    check_whole('window_size', window_size)
    check_whole('shift', shift, 0, window_size - 1)
    positions = (2 * window_size - 1) ** 2
    if table.dim() != 2 or x.dim() != 5 or x.shape[3] not in (3, 4) or x.shape[4] % table.shape[1]:
        raise ValueError(
            f'x must be (B, H, W, 3 or 4, C), and the heads of table (positions, heads) must divide C, not '
            f'{tuple(x.shape)} and {tuple(table.shape)}'
        )
    if table.shape[0] != positions:
        raise ValueError(f'table must have {positions} rows for windows of {window_size}, not {table.shape[0]}')
    if pad is not None and pad.shape != (x.shape[3] * x.shape[4],):
        raise ValueError(f'pad must be ({x.shape[3] * x.shape[4]}), not {tuple(pad.shape)}')
    if backend is None:
        takes = triton_multiplies(x) and is_small(window_size, x.shape[4] // table.shape[1])
        backend = 'triton' if takes else 'reference'
    function = named_backend(BACKENDS, backend)
    return function(x, table, pad, window_size, shift, shift_small_maps, gauss)


def is_small(window_size: int, channels: int) -> bool:
    """Whether the kernels are for windows of this side and heads of so many channels."""
    return any(window_size <= side and channels <= most for side, most in LARGEST)


def window_attention_reference(
    x: Tensor, table: Tensor, pad: Tensor | None, w: int, shift: int, shift_small_maps: bool, gauss: bool
) -> Tensor:
    """The windows of the projected map, one after the other."""
    (_, H, W, parts, _), heads = x.shape, table.shape[1]
    whole = pad_to_multiple(x.flatten(3), w, (1, 2))
    if pad is not None:
        inside = pad_to_multiple(x.new_ones(1, H, W, 1), w, (1, 2)) > 0
        whole = torch.where(inside, whole, pad.to(x.dtype))
    rows, columns = whole.shape[1] // w, whole.shape[2] // w
    shifts = shifts_of(rows, columns, w, shift, shift_small_maps, x.device)
    windows = split_windows(whole, w, shift, shifts).chunk(parts, -1)
    query, key, value, *probe = (split_heads(each, heads) for each in windows)
    bias = relative_bias(table.t().flip(1), w)[None]
    mask = mask_for(x, rows, columns, w, shifts)
    bias = (bias if mask is None else bias + mask.to(bias.dtype)).to(x.dtype)
    if gauss:
        out = mean_shift_attention(query, key, value, None, bias, backend='reference')
    else:
        out = attention(query, key, value, bias, backend='reference')
    out = join_heads(out - probe[0] if probe else out)
    return join_windows(out, rows, columns, w, shift, shifts)[:, :H, :W]


def _triton(x: Tensor, table: Tensor, *arguments) -> Tensor:
    """triton.py, imported when it is needed: Triton is not everywhere."""
    check_triton(x, products=True)
    w, channels = arguments[1], x.shape[4] // table.shape[1]
    if not is_small(w, channels):
        raise CannotServe(
            f"backend 'triton' is for windows of at most 8 x 8 pixels and heads of 64 channels, or 16 x 16 and 32, not "
            f"{w} x {w} and {channels}: choose backend 'reference'"
        )
    from .triton import window_attention_triton

    return window_attention_triton(x, table, *arguments)


BACKENDS: dict[str, Callable[..., Tensor]] = {'reference': window_attention_reference, 'triton': _triton}
