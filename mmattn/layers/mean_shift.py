"""Mean-shift attention ("Mean-Shift Feature Transformer", sections 2 and 3.1) and the forms it is compared with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import mean_shift_attention
from .window import Windows, join_heads

#: attention -> the columns of the paper's tables 1 and 2: query, key, value, probe if any, weight
COLUMNS = {'msf': 'QKVPW', 'residual': 'QKVPW', 'gauss': 'QKVW', 'plain': 'QKVW'}
GROUP_MODES = ('interleaved', 'block')


class MeanShiftAttention(nn.Module):
    r"""Multi-head mean-shift feature transformation, or the plain one.

    ===========  ==========================================================================================
    attention    computes
    ===========  ==========================================================================================
    'msf'        :math:`W [V x \, \sigma(-\frac{1}{2} \|k - q\|^2) - P x]`, the Gaussian kernel (equation 12)
    'residual'   :math:`W V x \, \sigma(-\frac{1}{2} \|k - q\|^2) - P x` (equation 14)
    'gauss'      the same without probe ("Gauss-Orig." of table 3)
    'plain'      :math:`W V x \, \sigma(k \cdot q)`, the transformer (equation 1)
    ===========  ==========================================================================================

    :math:`\sigma` is the softmax of its argument divided by the square root of a head's width.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        attention: a row of the table above.
        sharing: which projections share a matrix: a letter each of Q, K, V, P and W for query, key, value, probe (if
            there is one) and weight, equal where they are tied. 'QKVPW' ties none, 'QKKQW' is table 1's row i, and None
            ties none either. The weight projects back, so where tied it is the other's transpose (equation 11).
        groups: groups G of the projections in (section 2.3); divides ``dim``. The weight is never grouped.
        group_mode: 'interleaved' fills each head from all groups, 'block' takes groups one after the other (table 4).
        proj_bias: whether each matrix has a bias, as in plain ViT and Swin; the paper's have none.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Raises:
        ValueError: for an argument that cannot be, naming it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        attention: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if attention not in COLUMNS:
            raise ValueError(f'attention must be one of {", ".join(COLUMNS)}, not {attention!r}')
        columns = COLUMNS[attention]
        sharing = columns if sharing is None else sharing
        if not isinstance(sharing, str) or len(sharing) != len(columns) or not set(sharing) <= set(columns):
            raise ValueError(
                f'sharing of attention {attention!r} must be {len(columns)} letters of {columns}, equal '
                f'where projections share a matrix, not {sharing!r}'
            )
        if groups < 1 or dim % groups:
            raise ValueError(f'groups must divide the {dim} channels, not {groups}')
        if group_mode not in GROUP_MODES:
            raise ValueError(f'group_mode must be one of {", ".join(GROUP_MODES)}, not {group_mode!r}')
        self.num_heads = num_heads
        self.attention = attention
        self.sharing = sharing
        self.attn_drop_rate = attn_drop_rate

        #: letters of the matrices that project in, in the order of their rows in ``pre_proj``
        self.matrices = ''.join(dict.fromkeys(sharing[:-1]))
        if groups == 1:
            self.pre_proj = nn.Linear(dim, len(self.matrices) * dim, proj_bias)
        else:
            self.pre_proj = GroupedLinear(dim, len(self.matrices) * dim, groups, group_mode, proj_bias)
        self.post_proj = None if sharing[-1] in self.matrices else nn.Linear(dim, dim, proj_bias)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x: (B, ..., C), all positions between as one sequence of N; bias of the logits: (1 or B, heads, N, N) or None
        -> (B, ..., C)."""
        shape = x.shape
        projected = self.pre_proj(x.reshape(shape[0], -1, shape[-1]))
        projected = dict(zip(self.matrices, projected.chunk(len(self.matrices), -1)))  # (B, N, C) each
        q, k, v, *probe = (
            projected[letter].unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for letter in self.sharing[:-1]
        )
        dropout = self.attn_drop_rate if self.training else 0.0
        if self.attention == 'plain':
            out = F.scaled_dot_product_attention(q, k, v, None if bias is None else bias.to(q.dtype), dropout)
        else:
            out = mean_shift_attention(q, k, v, *(probe if self.attention == 'msf' else (None,)), bias, dropout)
        out = join_heads(out)
        out = F.linear(out, self._tied_weight()) if self.post_proj is None else self.post_proj(out)
        if self.attention == 'residual':
            out = out - projected[self.sharing[3]]
        return self.drop(out).view(shape)

    def _tied_weight(self) -> Tensor:
        """The weight (C, C) where a projection in has it too: that one's transpose."""
        weight = self.pre_proj.weight
        if isinstance(self.pre_proj, GroupedLinear):
            weight = self.pre_proj.dense_weight()
        return weight.chunk(len(self.matrices))[self.matrices.index(self.sharing[-1])].t()

    def warm_start(self, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """What a plain attention's projections, ``qkv`` and ``proj`` as in timm and Swin, have to start this one with.

        The probe starts at zero, and a matrix shared by several projections as the first of query, key, value and
        weight that has it. Biases are taken where there are any here; grouped projections have no place for dense ones.

        Args:
            state_dict: of a whole model; what is taken is removed from it.
            prefix: of the attention's tensors in it.

        Returns:
            own tensors by name; those that are missing start afresh.

        Raises:
            KeyError: naming a tensor that should be in the state dict.
        """
        start = {}
        grouped = isinstance(self.pre_proj, GroupedLinear)
        if self.post_proj is not None or not grouped:
            back = state_dict.pop(f'{prefix}proj.weight')
        if self.post_proj is not None:
            start['post_proj.weight'] = back
            if self.post_proj.bias is not None and f'{prefix}proj.bias' in state_dict:
                start['post_proj.bias'] = state_dict.pop(f'{prefix}proj.bias')
        if grouped:
            return start
        # Later letters have the last word.
        letters = self.sharing[-1] + self.sharing[2::-1]
        q, k, v = state_dict.pop(f'{prefix}qkv.weight').chunk(3)
        first = dict(zip(letters, (back.t(), v, k, q)))
        start['pre_proj.weight'] = torch.cat([first.get(letter, torch.zeros_like(v)) for letter in self.matrices])
        if self.pre_proj.bias is not None and f'{prefix}qkv.bias' in state_dict:
            q, k, v = state_dict.pop(f'{prefix}qkv.bias').chunk(3)
            first = dict(zip(letters, (torch.zeros_like(v), v, k, q)))
            start['pre_proj.bias'] = torch.cat([first.get(letter, torch.zeros_like(v)) for letter in self.matrices])
        return start


class GroupedLinear(nn.Linear):
    """Linear projection of G groups of channels (section 2.3).

    Input channels are split into G contiguous groups. The e-th output of group g is output channel e * G + g if
    interleaved, g * out_features / G + e in blocks.

    Args:
        in_features: channels in.
        out_features: channels out.
        groups: G, divides both.
        mode: 'interleaved' or 'block'.
        bias: whether there is one, of the output channels.
    """

    def __init__(
        self, in_features: int, out_features: int, groups: int, mode: str = 'interleaved', bias: bool = True
    ) -> None:
        super().__init__(in_features // groups, out_features, bias)  # weight: group after group, as released
        self.groups = groups
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features) -> (..., out_features)."""
        grouped = x.unflatten(-1, (self.groups, -1))
        weight = self.weight.unflatten(0, (self.groups, -1))
        order = 'eg' if self.mode == 'interleaved' else 'ge'
        out = torch.einsum(f'...gi,gei->...{order}', grouped, weight).flatten(-2)
        return out if self.bias is None else out + self.bias

    def dense_weight(self) -> Tensor:
        """The (out_features, in_features) matrix, zero between groups, that an ungrouped projection would have."""
        blocks = torch.block_diag(*self.weight.chunk(self.groups))
        if self.mode == 'interleaved':
            blocks = blocks.unflatten(0, (self.groups, -1)).transpose(0, 1).flatten(0, 1)
        return blocks


class MeanShiftWindowAttention(Windows):
    """Mean-shift attention within (shifted) windows, for Swin; with Swin's relative position bias.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        window_size: side w of the windows, in pixels.
        shift: displacement of the windows, 0 to w - 1 pixels.
        settings: further arguments of :class:`MeanShiftAttention`.
    """

    def __init__(self, dim: int, num_heads: int, window_size: int = 7, shift: int = 0, **settings) -> None:
        super().__init__(num_heads, window_size, shift)
        self.attn = MeanShiftAttention(dim, num_heads, **settings)

    def attend(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.attn(x, bias)
