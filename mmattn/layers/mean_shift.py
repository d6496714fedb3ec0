"""Mean-shift attention ("Mean-Shift Feature Transformer", sections 2 and 3.1) and the forms it is compared with."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_choice, check_finite, check_flags, check_heads, check_rates, check_whole
from ..ops import attention, mean_shift_attention, mean_shift_by_landmarks, mean_shift_steps, projected_mean_shift
from ..ops.heads import join_heads, split_heads
from ..ops.rotary import check_rope, rotary_embed
from .ghost import ghost_head
from .starts import mean_shift_from_plain, mean_shift_window_from_swin, windows_of_elsa
from .token_mixer import TOKEN_MIXERS, with_prefix
from .window import Ghost, Windows, position_table

#: form -> its projections, as the columns of tables 1 and 2: query, key, value, probe if there is one, weight
COLUMNS = {'msf': 'QKVPW', 'residual': 'QKVPW', 'gauss': 'QKVW', 'plain': 'QKVW'}
GROUP_MODES = ('interleaved', 'block')


@TOKEN_MIXERS.register_module()
class MeanShiftAttention(nn.Module):
    r"""Multi-head mean-shift feature transformation, or the plain one.

    ``form`` says which equation is computed:

    - 'msf': :math:`W [V x \, \sigma(-\frac{1}{2} \|k - q\|^2) - P x]`, the Gaussian kernel (equation 12)
    - 'residual': :math:`W V x \, \sigma(-\frac{1}{2} \|k - q\|^2) - P x` (equation 14)
    - 'gauss': the same without probe ("Gauss-Orig." of table 3)
    - 'plain': :math:`W V x \, \sigma(k \cdot q)`, the transformer (equation 1)

    :math:`\sigma` is the softmax of its argument divided by the square root of a head's width.

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        form: one of the list above.
        sharing: which projections share a matrix: one letter for query, key, value, probe (if there is one) and weight,
            equal where they share. 'QKVPW' and None share nothing; 'QKKQW' is row i of table 1. The weight projects
            back, so a shared weight is the transpose of the other matrix (equation 11).
        groups: groups G of the input projections (section 2.3); divides ``dim``. The weight is never grouped.
        group_mode: which channels of a query, key, value or probe come from which group (figure 2 and table 4).
            'interleaved': every head has channels of all groups. 'block': the first heads have those of the first
            group, and so on. The released code has another block mode, which no model uses: of all projections in one,
            so that with G = 2 queries and keys read one half of the channels and values and probes the other.
        proj_bias: whether each matrix has a bias, as in plain ViT and Swin; in the paper they have none.
        rope: base of the rotary position embedding of queries and keys, see :func:`mmattn.ops.rotary.rotation`; None:
            none. With it, x is (B, H, W, C).
        steps: mean-shift steps T, see :func:`mmattn.ops.mean_shift_steps`; 1 is the paper's model. Only 'msf' has more.
        step_size: :math:`\eta d^{-1/2}` of equation 11; 1 is the paper's model. Only 'msf' has others.
        landmarks: side of a grid of landmarks, the means of the keys in its cells. With L of them, the kernel of N
            tokens costs N L operations and not N N, and is approximate: see
            :func:`mmattn.ops.mean_shift_by_landmarks`. 0: exact. x is (B, H, W, C). Not for 'plain', and not for ONNX.
        ghost_size: side of a ghost head, odd; 0: none. See :class:`mmattn.layers.ghost.GhostHead`.
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.mean_shift_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    takes_prefix = True
    read_by = 'pre_proj'
    warm_start = mean_shift_from_plain
    changes_with_images = 'landmarks'  # which approximate what is exact without

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        form: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        rope: float | None = None,
        steps: int = 1,
        step_size: float = 1.0,
        landmarks: int = 0,
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_flags(proj_bias=proj_bias)
        check_rope(rope, dim // num_heads)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        check_choice('form', form, COLUMNS)
        columns = COLUMNS[form]
        sharing = columns if sharing is None else sharing
        if not isinstance(sharing, str) or len(sharing) != len(columns) or not set(sharing) <= set(columns):
            raise ValueError(
                f'sharing of form {form!r} must be {len(columns)} letters of {columns}, equal '
                f'where projections share a matrix, not {sharing!r}'
            )
        check_heads(dim, groups, 'groups')
        check_choice('group_mode', group_mode, GROUP_MODES)
        check_whole('steps', steps)
        check_finite('step_size', step_size, 0)
        check_whole('landmarks', landmarks, 0)
        if form != 'msf' and (steps, step_size) != (1, 1):
            raise ValueError(f"steps and step_size other than 1 need form 'msf', not {form!r}")
        if form == 'plain' and landmarks:
            raise ValueError("landmarks need a Gaussian kernel: form cannot be 'plain'")
        self.dim = dim
        self.num_heads = num_heads
        self.form = form
        # Each letter is that of the first projection with its matrix, whatever letters were given.
        self.sharing = ''.join(columns[sharing.index(letter)] for letter in sharing)
        #: what no tensor shows
        self.settings = dict(form=form, sharing=self.sharing)
        if groups > 1:
            self.settings['group_mode'] = group_mode
        self.rope = rope
        if rope is not None:
            self.settings['rope'] = float(rope)
        self.steps = int(steps)
        self.step_size = float(step_size)
        self.landmarks = int(landmarks)
        for name, default in dict(steps=1, step_size=1.0, landmarks=0).items():
            if getattr(self, name) != default:
                self.settings[name] = getattr(self, name)
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None

        #: letters of the input projections, in the order of their rows in ``pre_proj``
        self.matrices = ''.join(dict.fromkeys(self.sharing[:-1]))
        if groups == 1:
            self.pre_proj = nn.Linear(dim, len(self.matrices) * dim, proj_bias)
        else:
            count = len(self.matrices)
            self.pre_proj = GroupedLinear(dim, count * dim, groups, group_mode, proj_bias, projections=count)
        self.post_proj = None if self.sharing[-1] in self.matrices else nn.Linear(dim, dim, proj_bias)
        #: whether one operator takes what the projection gives, as it is
        self.is_one_operator = (
            form in ('msf', 'gauss')
            and self.sharing[:-1] == self.matrices
            and rope is None
            and not self.landmarks
            and (self.steps, self.step_size) == (1, 1)
        )
        self.ghost = ghost_head(dim, ghost_size)
        self.drop = nn.Dropout(drop_rate)

    def forward(
        self, x: Tensor, prefix: Tensor | None = None, *, bias: Tensor | None = None, ghost: Ghost = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of positions, and of prefix tokens if there are any, to each other.

        Args:
            x: (B, ..., C), N positions in all; (B, H, W, C) if there are ``landmarks``, a ``rope`` or a ``ghost_size``.
            prefix: (B, P, C) or None.
            bias: of the logits, (1 or B, heads, P + N, P + N), the prefix first; or None.
            ghost: a ghost head instead of the own one, from values to what it adds, (B, N, C) both.

        Returns:
            (B, ..., C); with a prefix, a pair of this and (B, P, C).
        """
        count = 0 if prefix is None else prefix.shape[1]
        whole = self.pre_proj(with_prefix(prefix, x))
        projected = dict(zip(self.matrices, whole.chunk(len(self.matrices), -1)))  # (B, P + N, C) each
        if self.is_one_operator and bias is None:
            dropout_p = self.attn_drop_rate if self.training else 0.0
            out = projected_mean_shift(whole, len(self.matrices), self.num_heads, dropout_p, self.backend)
        else:
            query, key, *others = (projected[letter] for letter in self.sharing[:-1])
            query, key = (rotary_embed(each, count, x.shape, self.num_heads, self.rope) for each in (query, key))
            q, k, v, *probe = (split_heads(part, self.num_heads) for part in (query, key, *others))
            out = join_heads(self.attend(q, k, v, probe[0] if self.form == 'msf' else None, bias, x.shape[1:-1]))
        out = self.add_ghost(out, projected[self.sharing[2]], count, x.shape, ghost)
        out = F.linear(out, self._tied_weight()) if self.post_proj is None else self.post_proj(out)
        if self.form == 'residual':
            out = out - projected[self.sharing[3]]
        out = self.drop(out)
        return out.view(x.shape) if prefix is None else (out[:, count:].view(x.shape), out[:, :count])

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, probe: Tensor | None, bias: Tensor | None, sides: torch.Size
    ) -> Tensor:
        """The result of the heads, before the weight. q, k, v, and the probe of 'msf': (B, heads, P + N, d), the last N
        of a map of these sides; bias: of the logits, not with landmarks -> (B, heads, P + N, d)."""
        dropout_p = self.attn_drop_rate if self.training else 0.0
        if self.form == 'plain':
            return attention(q, k, v, None if bias is None else bias.to(q.dtype), dropout_p)
        how = dict(dropout_p=dropout_p, backend=self.backend)
        if self.landmarks:
            shift = partial(mean_shift_by_landmarks, landmarks=self._landmarks(k, sides), **how)
        else:
            shift = partial(mean_shift_attention, bias=bias, **how)
        return mean_shift_steps(shift, q, k, v, probe, self.steps, self.step_size)

    def _landmarks(self, k: Tensor, sides: torch.Size) -> Tensor:
        """The prefix's keys, and means of the map's: (B, heads, P + N, d) -> (B, heads, P + L, d)."""
        prefix, k = k.split((k.shape[2] - sides.numel(), sides.numel()), 2)
        pooled = F.adaptive_avg_pool2d(k.mT.unflatten(3, sides).flatten(0, 1), self.landmarks)
        return torch.cat((prefix, pooled.flatten(2).mT.unflatten(0, k.shape[:2])), 2)

    def add_ghost(self, out: Tensor, values: Tensor, count: int, shape: torch.Size, ghost: Ghost = None) -> Tensor:
        """Add the ghost head, if there is one, to the result for ``count`` prefix tokens and a map of a shape.

        out and values: (B, P + N, C) -> (B, P + N, C). Prefix tokens have no place, so there S is zero.
        """
        if ghost is None and self.ghost is None:
            return out
        values = values[:, count:]
        summand = self.ghost(values.view(shape)).flatten(1, -2) if ghost is None else ghost(values)
        return out + F.pad(summand, (0, 0, count, 0))

    def _tied_weight(self) -> Tensor:
        """The output weight (C, C) if it is tied to an input projection: the transpose of that matrix."""
        weight = self.pre_proj.weight
        if isinstance(self.pre_proj, GroupedLinear):
            weight = self.pre_proj.dense_weight()
        return weight.chunk(len(self.matrices))[self.matrices.index(self.sharing[-1])].t()


class GroupedLinear(nn.Linear):
    """Linear projection of G groups of channels (section 2.3).

    Input channels are split into G contiguous groups, and so are the E output channels of each projection: output e of
    group g is channel e * G + g in mode 'interleaved' and g * E / G + e in mode 'block'.

    Args:
        in_features: channels in.
        out_features: channels out, of all projections.
        groups: G, divides the channels in and those of each projection.
        mode: 'interleaved' or 'block'.
        bias: whether there is a bias, one value per output channel.
        projections: how many projections there are, one after the other in the output channels.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int,
        mode: str = 'interleaved',
        bias: bool = True,
        projections: int = 1,
    ) -> None:
        # Rows of the weight are ordered by group, by projection, by output, as released.
        super().__init__(in_features // groups, out_features, bias)
        self.groups = groups
        self.mode = mode
        self.projections = projections

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features) -> (..., out_features)."""
        grouped = x.unflatten(-1, (self.groups, -1))
        weight = self.weight.unflatten(0, (self.groups, self.projections, -1))
        order = 'peg' if self.mode == 'interleaved' else 'pge'
        out = torch.einsum(f'...gi,gpei->...{order}', grouped, weight).flatten(-3)
        return out if self.bias is None else out + self.bias

    def dense_weight(self) -> Tensor:
        """The matrix (out_features, in_features) of a dense projection that computes the same: zero between groups."""
        return self._dense(self.weight)

    def nearest(self, dense: Tensor) -> Tensor:
        """The weight whose ``dense_weight`` is nearest to a matrix (out_features, in_features), in the Frobenius norm.

        ``dense_weight`` puts each number of the weight at one place. The nearest weight has the matrix's number there,
        which is what the transpose of that linear map gives.
        """
        return torch.func.vjp(self._dense, self.weight)[1](dense.to(self.weight))[0]

    def _dense(self, weight: Tensor) -> Tensor:
        blocks = torch.block_diag(*weight.chunk(self.groups)).unflatten(0, (self.groups, self.projections, -1))
        order = (1, 2, 0, 3) if self.mode == 'interleaved' else (1, 0, 2, 3)
        return blocks.permute(order).flatten(0, 2)


@TOKEN_MIXERS.register_module(name='MeanShiftWindow')
class MeanShiftWindowAttention(Windows):
    """Mean-shift attention within (shifted) windows, for Swin; with Swin's relative position bias.

    Arguments, and errors: see :class:`mmattn.layers.window.Windows` and :class:`MeanShiftAttention`.
    """

    read_by = 'attn.pre_proj'
    warm_start = mean_shift_window_from_swin
    rename_tensors = windows_of_elsa

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        window_size: int = 7,
        shift: int = 0,
        shift_small_maps: bool = True,
        form: str = 'msf',
        sharing: str | None = None,
        groups: int = 1,
        group_mode: str = 'interleaved',
        proj_bias: bool = False,
        steps: int = 1,
        step_size: float = 1.0,
        ghost_size: int = 0,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, window_size, shift, shift_small_maps, ghost_size)
        self.relative_position_bias_table = position_table((2 * window_size - 1) ** 2, num_heads)
        self.attn = MeanShiftAttention(
            dim,
            num_heads,
            form=form,
            sharing=sharing,
            groups=groups,
            group_mode=group_mode,
            proj_bias=proj_bias,
            steps=steps,
            step_size=step_size,
            attn_drop_rate=attn_drop_rate,
            drop_rate=drop_rate,
        )
        self.settings = self.attn.settings
        self.is_swin = self.settings == dict(form='plain', sharing='QKVW') and proj_bias

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        attn = self.attn
        one_step = (attn.steps, attn.step_size) == (1, 1)
        as_the_kernel = attn.form != 'residual' and attn.sharing == COLUMNS[attn.form] and one_step
        if not (as_the_kernel and self.is_fused(x, attn, attn.pre_proj)):
            return super().forward(x)
        return attn.drop(attn.post_proj(self.attend_map(x, attn.pre_proj, gauss=attn.form != 'plain')))

    def attend(self, x: Tensor, bias: Tensor, ghost: Ghost) -> Tensor:
        return self.attn(x, bias=bias, ghost=ghost)
