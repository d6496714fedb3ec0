from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..arguments import check_flags, check_heads, check_rates, check_whole
from ..ops import multi_head_attention, window_attention
from ..ops.any_size import crop, pad_to_multiple
from ..ops.backend import autocast_dtype, has_hooks, triton_multiplies
from ..ops.window_attention import is_small
from ..ops.windows import join_windows, mask_for, relative_bias, shifts_of, split_windows
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

    def is_fused(self, x: Tensor, attention: nn.Module, project: nn.Module) -> bool:
        """Whether :meth:`attend_map` serves x (B, H, W, C).

        Args:
            attention: the layer with the backend and the dropout of weights, which the kernels do not have.
            project: its projection. For padded pixels it must be a linear layer.
        """
        dropped = self.training and attention.attn_drop_rate > 0
        if dropped or attention.backend not in (None, 'triton') or not isinstance(project, nn.Linear):
            return False
        # Hooks expect windows.
        if has_hooks(project) or attention is not self and has_hooks(attention):
            return False
        served = triton_multiplies(x, autocast_dtype(x)) and is_small(self.window_size, x.shape[-1] // self.num_heads)
        return served or attention.backend == 'triton'

    def attend_map(self, x: Tensor, project: nn.Linear, gauss: bool) -> Tensor:
        """The result of the heads, (B, H, W, C) -> (B, H, W, C), before the output projection, by
        :func:`window_attention`."""
        x = project(x).unflatten(-1, (-1, x.shape[-1]))
        table, how = self.relative_position_bias_table, dict(backend='triton', gauss=gauss)
        out = window_attention(x, table, project.bias, self.window_size, self.shift, self.shift_small_maps, **how)
        return out if self.ghost is None else out + self.ghost(x[..., 2, :])

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        H, W = x.shape[1:3]
        w = self.window_size
        x = pad_to_multiple(x, w, (1, 2))
        rows, columns = x.shape[1] // w, x.shape[2] // w
        shifts = shifts_of(rows, columns, w, self.shift, self.shift_small_maps, x.device)

        def split(x: Tensor) -> Tensor:
            return split_windows(x, w, self.shift, shifts)

        def join(x: Tensor) -> Tensor:
            return crop(join_windows(x, rows, columns, w, self.shift, shifts), H, W)

        def ghost(values: Tensor) -> Tensor:
            return split(pad_to_multiple(self.ghost(join(values)), w, (1, 2)))

        mask = mask_for(x, rows, columns, w, shifts)
        return join(self.attend_masked(split(x), mask, None if self.ghost is None else ghost))


@TOKEN_MIXERS.register_module()
class WindowAttention(Windows):
    """(Shifted-)window multi-head self-attention of Swin Transformer, with its tensors.

    Args:
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Further arguments, and errors: see :class:`Windows`.

    Attributes:
        backend: 'triton', one kernel of :func:`mmattn.ops.window_attention` each way, or any other name: windows are
            copied. None chooses the fastest.
    """

    is_swin = True
    read_by = 'qkv'
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
        self.backend: str | None = None
        self.qkv = nn.Linear(dim, 3 * dim)
        self.relative_position_bias_table = position_table((2 * window_size - 1) ** 2, num_heads)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        if not self.is_fused(x, self, self.qkv):
            return super().forward(x)
        return self.drop(self.proj(self.attend_map(x, self.qkv, gauss=False)))

    def attend(self, x: Tensor, bias: Tensor, ghost: Ghost) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        dropout_p = self.attn_drop_rate if self.training else 0.0
        x = multi_head_attention(q, k, v, self.num_heads, bias.to(q.dtype), dropout_p)
        return self.drop(self.proj(x if ghost is None else x + ghost(v)))


def position_table(*shape: int) -> nn.Parameter:
    """A table of relative positions as it starts: normal, of deviation 0.02."""
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(shape), std=0.02))
