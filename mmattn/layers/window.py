from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates, check_whole
from ..ops import multi_head_attention
from ..ops.any_size import crop, pad_to_multiple
from ..ops.windows import mask_for, roll, shift_along
from .ghost import ghost_head
from .starts import window_from_swin, windows_of_elsa
from .token_mixer import TOKEN_MIXERS

#: what the ghost head adds for values in windows, (B * windows, w * w, C) -> the same shape; None if there is none
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
        ghost_size: side of a ghost head, odd; 0: none. It works on the whole map, across windows. See
            :class:`mmattn.layers.ghost.GhostHead`.

    Raises:
        ValueError: if an argument, also of a subclass, is wrong; the message names it.
    """

    #: whether the token mixer computes what Swin Transformer's windows compute, apart from a ghost head
    is_swin = False

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
        self.ghost = ghost_head(dim, ghost_size)

    def attend(self, x: Tensor, bias: Tensor, ghost: Ghost) -> Tensor:
        """x: (B * windows, w * w, C); bias of the logits: (1 or B * windows, heads, w * w, w * w); ghost: of values, to
        be added before the output projection -> the shape of x."""
        raise NotImplementedError

    def attend_masked(self, x: Tensor, mask: Tensor | None, ghost: Ghost) -> Tensor:
        """x: (B * windows, w * w, C); mask: (B * windows, 1, w * w, w * w), see ``shift_mask``, or None if windows are
        not shifted; ghost: see ``attend`` -> the shape of x."""
        # Swin's table is indexed by query minus key.
        bias = relative_bias(self.relative_position_bias_table.t().flip(1), self.window_size)[None]
        return self.attend(x, bias if mask is None else bias + mask.to(bias.dtype), ghost)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        B, H, W, C = x.shape
        w = self.window_size
        x = pad_to_multiple(x, w, (1, 2))
        rows, columns = x.shape[1] // w, x.shape[2] // w
        shifts = [self.shift, self.shift]
        if not self.shift_small_maps:
            shifts = [shift_along(count, w, self.shift, x.device) for count in (rows, columns)]

        def split(x: Tensor) -> Tensor:
            x = roll(x, self.shift, shifts, -1).view(B, rows, w, columns, w, C)
            return x.transpose(2, 3).reshape(B * rows * columns, w * w, C)

        def join(x: Tensor) -> Tensor:
            x = x.view(B, rows, columns, w, w, C).transpose(2, 3).reshape(B, rows * w, columns * w, C)
            return crop(roll(x, self.shift, shifts, 1), H, W)

        def ghost(values: Tensor) -> Tensor:
            return split(pad_to_multiple(self.ghost(join(values)), w, (1, 2)))

        mask = None
        if isinstance(shifts[0], Tensor) or any(shifts):
            mask = mask_for(x, rows, columns, w, shifts).unsqueeze(1).repeat(B, 1, 1, 1)
        return join(self.attend_masked(split(x), mask, None if self.ghost is None else ghost))


@TOKEN_MIXERS.register_module()
class WindowAttention(Windows):
    """(Shifted-)window multi-head self-attention of Swin Transformer, with its tensors.

    Args:
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Further arguments, and errors: see :class:`Windows`.
    """

    is_swin = True
    warm_start = window_from_swin
    rename_tensors = windows_of_elsa

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
        self.qkv = nn.Linear(dim, 3 * dim)
        self.relative_position_bias_table = position_table((2 * window_size - 1) ** 2, num_heads)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def attend(self, x: Tensor, bias: Tensor, ghost: Ghost) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        dropout_p = self.attn_drop_rate if self.training else 0.0
        x = multi_head_attention(q, k, v, self.num_heads, bias.to(q.dtype), dropout_p)
        return self.drop(self.proj(x if ghost is None else x + ghost(v)))


def position_table(*shape: int) -> nn.Parameter:
    """A table of relative positions as it starts: normal, of deviation 0.02."""
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(shape), std=0.02))


def relative_bias(table: Tensor, window_size: int) -> Tensor:
    """Table (rows, (2w - 1) ** 2) of the offsets of key minus query -> (rows, w * w, w * w), the query first.

    It is made of views of the table, so that no module has to keep an index.
    """
    w = window_size
    table = table.unflatten(1, (2 * w - 1, 2 * w - 1))
    # Window (i, j) of the table has the keys of the query at (w - 1 - i, w - 1 - j).
    windows = table.unfold(1, w, 1).unfold(2, w, 1)  # (rows, i, j, row of the key, column of the key)
    return windows.flip(1, 2).flatten(3).flatten(1, 2)
