import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...arguments import check_choice, check_flags, check_odd, check_rates
from ...ops import attention
from ...ops.elsa import elsa_attention, neighbourhood_products, neighbourhood_shift, neighbourhood_sum
from ...ops.heads import join_heads
from ...ops.windows import relative_bias
from ..starts import table_of_swin, take_linear
from ..token_mixer import TOKEN_MIXERS
from ..window import Ghost, Windows, position_table
from .dynamic_filters import filter_norm

TERMS = ('qk', 'qr', 'rk', 'b')


@TOKEN_MIXERS.register_module()
class LocalAttention(Windows):
    r"""Equation 4 of "ELSA: Enhanced Local Self-Attention for Vision Transformer", whose cases are the networks of
    tables 1 to 3.

    .. math::
        f_i = \sum_{j \in \Phi} \mathrm{Norm}_j \big(
        q_i k_j + q_i r^k_{j-i} + r^q_{j-i} k_j + r^b_{j-i} \big) v_j

    There are projections to query and key if a term needs them. Terms 'qk' and 'b' in windows make
    :class:`mmattn.layers.WindowAttention`, and a frame of them takes a Swin Transformer strictly.

    Args:
        dim: channels C.
        num_heads: attention heads h; divides ``dim``.
        terms: which of the four terms there are, by name: 'qk', 'qr', 'rk', 'b'.
        area: 'window', Swin's (shifted) windows, or 'neighbours', the k x k pixels around each pixel. Keys and values
            are zero outside the map; the softmax is not masked there, as in ELSA's release.
        norm: 'softmax', 'filter' (:func:`mmattn.layers.ablations.dynamic_filters.filter_norm`), 'scaled_filter' (times
            :math:`\sqrt 2 / k`, as in DDF) or 'identity'. The paper does not say which filter norm table 2 has. The
            text names a variance of 1, which 'filter' has. Pixels that are in one window only because of the shift
            give each other the weight zero, whatever the norm.
        window_size: side w of the windows, in pixels.
        kernel_size: side k of the neighbourhood, odd.
        shift: displacement of the windows, 0 to w - 1 pixels; neighbourhoods have none.
        shift_small_maps: see :class:`mmattn.layers.window.Windows`.
        shared_tables: whether all heads share :math:`r^k` and :math:`r^q`. The paper does not say; by default each head
            has its own, as it has of :math:`r^b`.
        ghost_size: see :class:`mmattn.layers.window.Windows`.
        scale_tables: whether :math:`(C / h)^{-1/2}`, the factor of the term 'qk', also scales 'qr' and 'rk'. The paper
            does not say; by default it does not, as in the equation.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        terms: Sequence[str] = ('qk', 'b'),
        area: str = 'window',
        norm: str = 'softmax',
        window_size: int = 7,
        kernel_size: int = 7,
        shift: int = 0,
        shift_small_maps: bool = True,
        ghost_size: int = 0,
        shared_tables: bool = False,
        scale_tables: bool = False,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, window_size, shift, shift_small_maps, ghost_size)
        is_list = isinstance(terms, Sequence) and not isinstance(terms, str)
        self.terms = tuple(term for term in TERMS if is_list and term in terms)
        self.side = window_size if area == 'window' else kernel_size
        if not self.terms or len(self.terms) < len(terms):
            raise ValueError(f'terms must be a list of one or more of {", ".join(TERMS)}, not {terms!r}')
        check_odd('kernel_size', kernel_size)
        check_flags(shared_tables=shared_tables, scale_tables=scale_tables)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        check_choice('area', area, ('window', 'neighbours'))
        check_choice('norm', norm, ('softmax', 'filter', 'scaled_filter', 'identity'))
        if self.side == 1 and 'filter' in norm:
            raise ValueError(f'norm {norm!r} needs an area of more than one pixel')
        self.area = area
        self.norm = norm
        self.width = dim // num_heads
        self.table_scale = self.width**-0.5 if scale_tables else 1.0
        self.attn_drop_rate = attn_drop_rate
        # With the term 'qk' alone, no tensor shows heads and side.
        self.settings = dict(terms=list(self.terms), area=area, norm=norm, num_heads=num_heads, side=self.side)
        self.settings['scale_tables'] = scale_tables
        self.is_swin = (self.terms, area, norm) == (('qk', 'b'), 'window', 'softmax')

        # One column for each offset of key minus query, row-major.
        positions = (2 * window_size - 1) ** 2 if area == 'window' else kernel_size**2
        rows = self.width if shared_tables else dim
        self.rk = position_table(rows, positions) if 'qr' in terms else None
        self.rq = position_table(rows, positions) if 'rk' in terms else None
        self.rb = position_table(num_heads, positions) if 'b' in terms else None
        projections = 1 + ('qk' in terms or 'qr' in terms) + ('qk' in terms or 'rk' in terms)
        self.pre_proj = nn.Linear(dim, projections * dim)  # value, query, key
        self.post_proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return super().forward(x) if self.area == 'window' else self._attend_neighbours(x)

    def attend_masked(self, x: Tensor, mask: Tensor | None, ghost: Ghost) -> Tensor:
        v, q, k = (part.transpose(1, 2) for part in self._project(x))
        logits = [] if self.rb is None else [relative_bias(self.rb, self.side)[None]]
        if self.rk is not None:
            logits.append(torch.einsum('bhic,hcij->bhij', q, self._by_head(relative_bias(self.rk, self.side))))
        if self.rq is not None:
            logits.append(torch.einsum('bhjc,hcij->bhij', k, self._by_head(relative_bias(self.rq, self.side))))
        if mask is not None and self.norm == 'softmax':
            logits.append(mask.to(v.dtype))
        if 'qk' in self.terms and self.norm == 'softmax':
            bias = sum(logits).to(q.dtype) if logits else None
            x = attention(q, k, v, bias, self.attn_drop_rate if self.training else 0.0)
        else:
            if 'qk' in self.terms:
                logits.append(q * self.width**-0.5 @ k.transpose(-1, -2))
            weights = self._weights(sum(logits))
            if mask is not None and self.norm != 'softmax':
                weights = weights.masked_fill(mask != 0, 0)
            x = weights.to(v.dtype) @ v
        x = join_heads(x)
        return self.drop(self.post_proj(x if ghost is None else x + ghost(join_heads(v))))

    def warm_start(self, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """Own tensors from Swin's attention.

        The tables of 'qr' and 'rk' start at zero. So with 'qk' and 'b' in windows of Swin's size, under a softmax, the
        attention starts as Swin's. The table of neighbours is the centre of Swin's, and zero beyond.
        """
        dim = self.post_proj.in_features
        start = take_linear(state_dict, f'{prefix}proj', dim, dim, 'post_proj')
        # One weight serves query or key alone, as in ``_project``.
        kinds = [True, 'qk' in self.terms or 'qr' in self.terms, 'qk' in self.terms or 'rk' in self.terms]
        for name, value in take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim, 'pre_proj').items():
            q, k, v = value.chunk(3)
            start[name] = torch.cat([part for part, has in zip((v, q, k), kinds) if has])
        if self.rb is not None:
            table = table_of_swin(self, state_dict, prefix).t().flip(1)  # by key minus query
            if self.area == 'neighbours':
                side = math.isqrt(table.shape[1])
                table = F.pad(table.view(-1, side, side), [(self.side - side) // 2] * 4).flatten(1)
            start['rb'] = table
        tables = {'rk': self.rk, 'rq': self.rq}
        return start | {name: torch.zeros_like(own) for name, own in tables.items() if own is not None}

    def _attend_neighbours(self, x: Tensor) -> Tensor:
        v, q, k = self._project(x)
        logits = [] if self.rb is None else [self.rb.expand(*v.shape[:4], -1)]
        if self.rk is not None:
            logits.append(torch.einsum('byxhc,hcp->byxhp', q, self._by_head(self.rk)))
        if self.rq is not None:
            logits.append(neighbourhood_shift(torch.einsum('byxhc,hcp->byxhp', k, self._by_head(self.rq))))
        if 'qk' in self.terms:
            logits.append(neighbourhood_products(q * self.width**-0.5, k, self.side))
        logits = sum(logits).to(v.dtype)
        if self.norm == 'softmax':
            x = elsa_attention(logits, v.flatten(-2), dropout_p=self.attn_drop_rate if self.training else 0.0)
        else:
            x = neighbourhood_sum(self._weights(logits), v.flatten(-2))
        if self.ghost is not None:
            x = x + self.ghost(v.flatten(-2))
        return self.drop(self.post_proj(x))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, query and key, (..., heads, C / heads) each. One that no term needs is a copy of another."""
        parts = self.pre_proj(x).unflatten(-1, (-1, self.num_heads, self.width)).unbind(-3)
        return parts[0], parts[:2][-1], parts[-1]

    def _by_head(self, table: Tensor) -> Tensor:
        """Columns of r: (rows, ...) -> (heads, C / heads, ...)."""
        table = table.unflatten(0, (-1, self.width)) * self.table_scale
        return table.expand(self.num_heads, *table.shape[1:])

    def _weights(self, logits: Tensor) -> Tensor:
        if self.norm == 'softmax':
            weights = logits.softmax(-1)
        else:
            weights = logits if self.norm == 'identity' else filter_norm(logits)
            weights = weights * (2**0.5 / self.side if self.norm == 'scaled_filter' else 1.0)
        return F.dropout(weights, self.attn_drop_rate, self.training)
