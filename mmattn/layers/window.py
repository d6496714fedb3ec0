import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates, check_whole
from ..ops.biased_attention import biased_attention
from ..ops.heads import join_heads
from ..ops.tracing import is_plain, is_tracing
from .any_size import crop, pad_to_multiple
from .ghost import ghost_summand
from .mechanism import MECHANISMS
from .starts import window_from_swin

#: displacement of windows along rows and columns; tensors while a graph is traced
Shifts = Sequence[int | Tensor]
#: the ghost summand of values in windows, (B * windows, w * w, C) -> the same shape; None if there is none
Ghost = Callable[[Tensor], Tensor] | None


class Windows(nn.Module):
    """Swin Transformer's (shifted) windows. A subclass computes the attention within them in ``attend``; if its logits
    have no relative position bias, in ``attend_masked``.

    If windows do not divide a map, it is padded with zeros at the bottom and the right. These take part as keys, as in
    Swin's own dense-prediction code.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        window_size: side w of the windows, in pixels.
        shift: displacement of the windows, 0 to w - 1 pixels.
        shift_small_maps: whether windows are shifted along an axis that, padded, is one window long.
        ghost_size: side of a ghost summand, odd; 0: none. It works on the whole map, across windows. See
            :class:`mmattn.layers.ghost.GhostSummand`.

    Raises:
        ValueError: if an argument, also of a subclass, is wrong; the message names it.
    """

    def __init__(
        self, dim: int, num_heads: int, window_size: int, shift: int, shift_small_maps: bool, ghost_size: int = 0
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('window_size', window_size)
        check_whole('shift', shift, 0, window_size - 1)
        check_flags(shift_small_maps=shift_small_maps)
        self.num_heads = num_heads
        self.window_size = window_size
        self.shift = shift
        self.shift_small_maps = shift_small_maps
        self.rb = position_table(num_heads, (2 * window_size - 1) ** 2)
        self.ghost = ghost_summand(dim, ghost_size)

    #: whether the mechanism computes what Swin Transformer's windows compute, apart from a ghost summand
    is_swin = False

    def attend(self, x: Tensor, bias: Tensor, ghost: Ghost) -> Tensor:
        """x: (B * windows, w * w, C); bias of the logits: (1 or B * windows, heads, w * w, w * w); ghost: of values, to
        be added before the output projection -> the shape of x."""
        raise NotImplementedError

    def attend_masked(self, x: Tensor, mask: Tensor | None, ghost: Ghost) -> Tensor:
        """x: (B * windows, w * w, C); mask: (B * windows, 1, w * w, w * w), see ``shift_mask``, or None if windows are
        not shifted; ghost: see ``attend`` -> the shape of x."""
        bias = relative_bias(self.rb, self.window_size)[None]
        return self.attend(x, bias if mask is None else bias + mask.to(bias.dtype), ghost)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        B, H, W, C = x.shape
        w = self.window_size
        x = pad_to_multiple(x, w, (1, 2))
        rows, columns = x.shape[1] // w, x.shape[2] // w
        shifts = self._shift(rows, x.device), self._shift(columns, x.device)

        def split(x: Tensor) -> Tensor:
            x = self._moved(x, shifts, -1).view(B, rows, w, columns, w, C)
            return x.transpose(2, 3).reshape(B * rows * columns, w * w, C)

        def join(x: Tensor) -> Tensor:
            x = x.view(B, rows, columns, w, w, C).transpose(2, 3).reshape(B, rows * w, columns * w, C)
            return crop(self._moved(x, shifts, 1), H, W)

        def ghost(values: Tensor) -> Tensor:
            return split(pad_to_multiple(self.ghost(join(values)), w, (1, 2)))

        mask = None
        if isinstance(shifts[0], Tensor) or any(shifts):
            mask = _mask(rows, columns, w, shifts, x).unsqueeze(1).repeat(B, 1, 1, 1)
        return join(self.attend_masked(split(x), mask, None if self.ghost is None else ghost))

    def _shift(self, count: int, device: torch.device) -> int | Tensor:
        """The displacement along an axis of ``count`` windows; a tensor in a graph, which must serve every count."""
        if not self.shift or self.shift_small_maps:
            return self.shift
        if is_tracing():
            size = count * self.window_size
            return (torch.arange(size, device=device)[-1] >= self.window_size) * self.shift
        return self.shift if count > 1 else 0

    def _moved(self, x: Tensor, shifts: Shifts, sign: int) -> Tensor:
        """A map (B, H, W, C), rolled by the shifts times ``sign``."""
        if not self.shift:
            return x
        if not is_tracing():
            return x.roll([sign * shift for shift in shifts], (1, 2)) if any(shifts) else x
        for dim, shift in zip((1, 2), shifts):
            # Not torch.roll: torch.compile needs minutes to simplify the remainders of its indices.
            first = x.shape[dim] - self.shift if sign > 0 else self.shift
            rolled = torch.cat(x.split((first, x.shape[dim] - first), dim)[::-1], dim)
            x = torch.where(shift > 0, rolled, x) if isinstance(shift, Tensor) else rolled
        return x


@MECHANISMS.register_module()
class WindowAttention(Windows):
    """(Shifted-)window multi-head self-attention of Swin Transformer, with the tensors of the ELSA-Swin release.

    Args:
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Further arguments, and errors: see :class:`Windows`.
    """

    is_swin = True
    warm_start = window_from_swin

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        window_size: int = 7,
        shift: int = 0,
        shift_small_maps: bool = True,
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, window_size, shift, shift_small_maps, ghost_size)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.attn_drop_rate = attn_drop_rate
        self.pre_proj = nn.Linear(dim, 3 * dim)  # value, query, key
        self.post_proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def attend(self, x: Tensor, bias: Tensor, ghost: Ghost) -> Tensor:
        v, q, k = self.pre_proj(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        x = biased_attention(q, k, v, bias.to(q.dtype), self.attn_drop_rate if self.training else 0.0)
        x = join_heads(x)
        return self.drop(self.post_proj(x if ghost is None else x + ghost(join_heads(v))))


def position_table(rows: int, positions: int) -> nn.Parameter:
    """A table (rows, positions) of relative positions as it starts: normal, of deviation 0.02."""
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(rows, positions), std=0.02))


def relative_bias(table: Tensor, window_size: int) -> Tensor:
    """Table (rows, (2w - 1) ** 2) of the offsets of key minus query -> (rows, w * w, w * w), the query first.

    It is made of views of the table, so that no module has to keep an index.
    """
    w = window_size
    table = table.unflatten(1, (2 * w - 1, 2 * w - 1))
    # Window (i, j) of the table has the keys of the query at (w - 1 - i, w - 1 - j).
    windows = table.unfold(1, w, 1).unfold(2, w, 1)  # (rows, i, j, row of the key, column of the key)
    return windows.flip(1, 2).flatten(3).flatten(1, 2)


def shift_mask(rows: int, columns: int, window_size: int, shifts: Shifts, device: torch.device | None = None) -> Tensor:
    """(rows * columns, w * w, w * w): -100 between pixels that only the cyclic shift made neighbours, else 0."""

    def region(count: int, shift: int | Tensor) -> Tensor:
        size = count * window_size
        position = torch.arange(size, device=device)
        return (position >= size - window_size).long() + (position >= size - shift).long()

    regions = region(rows, shifts[0])[:, None] * 3 + region(columns, shifts[1])
    regions = regions.view(rows, window_size, columns, window_size).transpose(1, 2).reshape(rows * columns, -1)
    return -100.0 * (regions[:, None] != regions[:, :, None])


def _mask(rows: int, columns: int, window_size: int, shifts: Shifts, x: Tensor) -> Tensor:
    """``shift_mask`` on the device of ``x``, kept for later calls where that is possible."""
    if not is_plain(x):
        return shift_mask(rows, columns, window_size, shifts, x.device)
    # Work of another stream does not wait for the kernels that make a mask.
    stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
    return _kept_mask(stream, rows, columns, window_size, shifts, x.device)


# Eight masks are those of four stages for two sizes of images. The largest one of an 800 x 1333 image has 13 MB, all
# four have 18 MB.
@functools.lru_cache(maxsize=8)
def _kept_mask(stream: torch.cuda.Stream | None, *arguments: object) -> Tensor:
    with torch.inference_mode(False):  # A training step could not use a mask made in inference mode.
        return shift_mask(*arguments)
