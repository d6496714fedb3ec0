import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...arguments import check_heads, check_rates, check_whole
from ...ops.any_size import ceil_div
from ...ops.global_self_attention import fit_table
from ...ops.heads import join_heads
from ...ops.rotary import check_rope, rotary_embed
from ..elsa import check_ghost_head
from ..starts import take_linear
from ..token_mixer import TOKEN_MIXERS, with_prefix


@TOKEN_MIXERS.register_module()
class GhostHeadAttention(nn.Module):
    r"""Global self-attention with a ghost head, which makes several maps of each attention map ("ELSA", equation 8 and
    table 11).

    .. math::
        \hat A^c_{ij} = (O^c_{j-i})^\lambda A^{c \bmod h}_{ij} + \gamma S^c_{j-i}, \qquad c = 0, \dots, mh - 1

    A are the h attention maps after the softmax. The values are taken as mh groups of channels. O and S are tables by
    relative position: with one matrix per pair of pixels, table 11's network would have 11 million parameters and not
    6. S starts as in algorithm 1 of the paper, nearly 0. O, which is random there, starts at 1: so the layer starts
    near plain attention.

    Args:
        dim: channels C.
        num_heads: attention heads h.
        multiple: m; ``num_heads * multiple`` divides ``dim``. In table 11, 3 heads become 6.
        lam: :math:`\lambda`, a whole number; 0: no O. The paper does not print it for table 11.
        gamma: :math:`\gamma`; 0: no S. The paper does not print it either.
        rope: base of the rotary position embedding of queries and keys, see :func:`mmattn.ops.rotary.rotation`; None:
            none.
        stride: of the map, in pixels of the image.
        img_size: side of the images, in pixels, that the tables are for. For smaller ones they are cropped; for larger
            ones they are stretched, and S is scaled down so that its sum over the map stays the same.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    takes_prefix = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        multiple: int = 2,
        lam: int = 1,
        gamma: float = 1.0,
        rope: float | None = None,
        stride: int = 16,
        img_size: int = 224,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('multiple', multiple)
        check_whole('stride', stride)
        check_whole('img_size', img_size)
        check_ghost_head(lam, gamma)
        check_rope(rope, dim // num_heads)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        ghosts = num_heads * multiple
        if dim % ghosts:
            raise ValueError(f'{num_heads} heads times multiple {multiple} must divide the {dim} channels')
        self.num_heads = num_heads
        self.multiple = multiple
        self.lam = lam
        self.gamma = gamma
        self.settings = dict(multiple=int(multiple), lam=int(lam), gamma=float(gamma))
        self.rope = rope
        if rope is not None:
            self.settings['rope'] = float(rope)

        side = 2 * ceil_div(img_size, stride) - 1
        self.pre_proj = nn.Linear(dim, 3 * dim)
        self.post_proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_drop_rate)
        self.drop = nn.Dropout(drop_rate)
        self.ghost_mul = nn.Parameter(torch.ones(ghosts, side, side)) if lam else None
        self.ghost_add = (
            nn.Parameter(nn.init.trunc_normal_(torch.zeros(ghosts, side, side), std=0.02)) if gamma else None
        )

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """x: (B, H, W, C) -> (B, H, W, C); with a prefix (B, P, C), a pair of these shapes."""
        q, k, v = self.pre_proj(with_prefix(prefix, x)).chunk(3, -1)
        v = v.unflatten(-1, (self.num_heads * self.multiple, -1)).transpose(1, 2)
        count = 0 if prefix is None else prefix.shape[1]
        q, k = (rotary_embed(part, count, x.shape, self.num_heads, self.rope) for part in (q, k))
        out = self.drop(self.post_proj(join_heads(self.weights(q, k, *x.shape[1:3], count) @ v)))
        return out.view(x.shape) if prefix is None else (out[:, count:].view(x.shape), out[:, :count])

    def weights(self, q: Tensor, k: Tensor, height: int, width: int, prefix: int = 0) -> Tensor:
        """Equation 8 for N tokens, ``prefix`` of them before the H * W of the map. q and k: (B, N, C) ->
        (B, multiple * heads, N, N). A pair with a prefix token has no relative position: there O is 1 and S is 0."""
        q, k = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (q, k))
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1).to(q.dtype)
        weights = self.attn_drop(weights).repeat(1, self.multiple, 1, 1)
        if self.ghost_mul is not None:
            weights = weights * self._by_pair(self.ghost_mul, height, width, False, prefix).to(q.dtype) ** self.lam
        if self.ghost_add is not None:
            weights = weights + self.gamma * self._by_pair(self.ghost_add, height, width, True, prefix).to(q.dtype)
        return weights

    def warm_start(self, state_dict: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
        """All own tensors from plain attention, which this attention then computes: S starts at 0 and O at 1. Channels
        of the values change places, so that each keeps its attention map."""
        dim = len(self.post_proj.weight)

        def regrouped(x: Tensor) -> Tensor:
            return x.unflatten(0, (self.num_heads, self.multiple, -1)).transpose(0, 1).flatten(0, 2)

        start = take_linear(state_dict, f'{prefix}proj', dim, dim, 'post_proj')
        start['post_proj.weight'] = regrouped(start['post_proj.weight'].T).T
        for name, value in take_linear(state_dict, f'{prefix}qkv', 3 * dim, dim, 'pre_proj').items():
            *qk, v = value.chunk(3)
            start[name] = torch.cat([*qk, regrouped(v)])
        if self.ghost_mul is not None:
            start['ghost_mul'] = torch.ones_like(self.ghost_mul)
        if self.ghost_add is not None:
            start['ghost_add'] = torch.zeros_like(self.ghost_add)
        return start

    def _by_pair(self, table: Tensor, height: int, width: int, keep_sum: bool, prefix: int = 0) -> Tensor:
        """A table fitted to a map, for pairs of tokens: (heads, P + H * W of the query, P + H * W of the other). With
        ``keep_sum`` it is S, otherwise O."""
        for length in (height, width):  # each turn fits the rows, and makes them the columns
            L = table.shape[1] // 2 + 1
            rows = fit_table(table.transpose(0, 1).flatten(1), length, 'stretch').unflatten(1, (len(table), -1))
            table = rows.permute(1, 2, 0)
            if not keep_sum:  # fit_table divides a longer table
                table = table * (torch.arange(1, length + 1, device=table.device)[-1].clamp(min=L) / L)
        # An index and position.shape[0]: Tensor.unfold and len() would bind a graph to one size.
        rows, columns = (torch.arange(length, device=table.device) for length in (height, width))
        rows, columns = (position - position[:, None] + position.shape[0] - 1 for position in (rows, columns))
        table = table[:, rows[:, None, :, None], columns[:, None]].flatten(3).flatten(1, 2)
        return F.pad(table, (prefix, 0, prefix, 0), value=0.0 if keep_sum else 1.0) if prefix else table
