import math

import torch
from torch import Tensor, nn

from ..arguments import check_choice, check_finite, check_flags, check_heads, check_odd, check_rates, check_whole
from ..ops.elsa import elsa_attention, fastest, neighbourhood_shift
from ..ops.grouped_conv import grouped_conv
from ..ops.tokens import split_channels
from .starts import elsa_from_plain
from .token_conv import TokenConv2d
from .token_mixer import TOKEN_MIXERS


@TOKEN_MIXERS.register_module()
class ELSA(nn.Module):
    r"""Enhanced local self-attention ("ELSA", section 5 and appendix D).

    Hadamard attention (equation 7), the ghost head (equation 8) and the sum over the neighbourhood (equation 5).

    Args:
        dim: channels C.
        num_heads: attention heads; divides ``dim``.
        kernel_size: side k of the neighbourhood, odd.
        dilation: distance of neighbours, in pixels, at most 1024: no map is larger.
        group_width: channels per group of the k x k convolution; the channels of query and key are a multiple of it.
        hadamard: how :math:`p = q \odot k` gives the logits. 'released': a k x k grouped convolution, GELU and a 1 x 1
            convolution, the form of all printed accuracies. 'equation': :math:`p_i r^k_{j-i} + r^q_{j-i} p_j +
            r^b_{j-i}`, equation 7 as written, with p zero outside the map.
        qkv_bias: whether the projections to query, key and value have biases, as in the released models.
        lam: exponent :math:`\lambda` of the ghost multiplier O, a whole number; 0: no multiplier.
        gamma: factor :math:`\gamma` of the ghost head's matrix S; 0: no S. If both are 0, there is no ghost head
            (table 4, "HA").
        attn_drop_rate: dropout of attention weights.
        drop_rate: dropout of the output.

    Attributes:
        backend: of :func:`mmattn.ops.elsa_attention`; None chooses the fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    read_by = 'pre_proj'
    warm_start = elsa_from_plain

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        kernel_size: int = 7,
        dilation: int = 1,
        group_width: int = 8,
        lam: float = 0.0,
        gamma: float = 1.0,
        hadamard: str = 'released',
        qkv_bias: bool = True,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_whole('dim', dim, 3)  # fewer have no query and key
        check_elsa(kernel_size, dilation, group_width, lam, gamma)
        check_choice('hadamard', hadamard, ('released', 'equation'))
        check_flags(qkv_bias=qkv_bias)
        check_rates(attn_drop_rate=attn_drop_rate, drop_rate=drop_rate)
        self.dim = dim
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.lam = lam
        self.gamma = gamma
        self.attn_drop_rate = attn_drop_rate
        self.backend: str | None = None
        self.settings = dict(dilation=int(dilation), lam=float(lam), gamma=float(gamma))

        self.dim_qk = math.ceil(dim // 3 * 2 / group_width) * group_width
        self.pre_proj = TokenConv2d(dim, 2 * self.dim_qk + dim, 1, bias=qkv_bias)
        positions = num_heads * kernel_size**2
        if hadamard == 'released':
            self.attn: nn.Module = _Logits(
                _GroupedConv2d(
                    self.dim_qk,
                    self.dim_qk,
                    kernel_size,
                    padding=dilation * (kernel_size // 2),
                    dilation=dilation,
                    groups=self.dim_qk // group_width,
                ),
                nn.GELU(),
                TokenConv2d(self.dim_qk, positions, 1),
            )
        else:  # Only r^k has the bias r^b: r^q is read at the neighbours, and pixels at the border have fewer of them.
            self.attn = nn.ModuleDict(
                {name: TokenConv2d(self.dim_qk, positions, 1, bias=name == 'rk') for name in ('rk', 'rq')}
            )
            for table in self.attn.parameters():
                nn.init.trunc_normal_(table, std=0.02)
        self.post_proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

        # One tensor, as released: (2, 1, C, k, k), multiplier first, or (1, C, k, k) if there is only one.
        mul = torch.randn(1, dim, kernel_size, kernel_size)
        add = nn.init.trunc_normal_(torch.zeros(1, dim, kernel_size, kernel_size), std=0.02)
        if lam and gamma:
            self.ghost_head: nn.Parameter | None = nn.Parameter(torch.stack((mul, add)))
        elif lam or gamma:
            self.ghost_head = nn.Parameter(mul if lam else add)
        else:
            self.ghost_head = None

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        q, k, v = split_channels(self.pre_proj(x), (self.dim_qk, self.dim_qk, self.dim))
        dropout_p = self.attn_drop_rate if self.training else 0.0
        ghost_mul, ghost_add = self._ghost_matrices()
        backend = self.backend or fastest(q, v, dropout_p)
        logits = self._logits(q * k, tap_major=backend == 'triton')
        x = elsa_attention(logits, v, ghost_mul, ghost_add, self.dilation, dropout_p, self.backend)
        return self.drop(self.post_proj(x))

    def _logits(self, x: Tensor, tap_major: bool = False) -> Tensor:
        """Product of query and key, (B, H, W, dim_qk) -> (B, H, W, heads, k * k).

        If ``tap_major``, logits of the released form are in memory as (B, heads, k * k, H, W): the GPU kernels read one
        tap of many pixels at a time.
        """
        if isinstance(self.attn, nn.Sequential):
            backend = 'reference' if self.backend == 'reference' else None  # The convolution has no others.
            return self.attn(x, tap_major, backend).unflatten(-1, (self.num_heads, -1))
        own, neighbours = (self.attn[name](x).unflatten(-1, (self.num_heads, -1)) for name in ('rk', 'rq'))
        return own + neighbourhood_shift(neighbours, self.dilation)

    def _ghost_matrices(self) -> tuple[Tensor | None, Tensor | None]:
        """O ** lambda and gamma * S of equation 8, (C, k, k) each, or None."""
        if self.ghost_head is None:
            return None, None
        parts = iter(self.ghost_head.flatten(0, -4))
        mul = next(parts) ** self.lam if self.lam else None
        add = next(parts) * self.gamma if self.gamma else None
        return mul, add


class _GroupedConv2d(TokenConv2d, nn.Conv2d):
    """A convolution of few channels per group, which keeps the size of the map."""

    def forward(self, x: Tensor, backend: str | None = None) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return grouped_conv(x, self.weight, self.bias, self.dilation[0], backend)


class _Logits(nn.Sequential):
    """A grouped convolution, an activation and a 1 x 1 convolution of (B, H, W, C) tokens."""

    def forward(self, x: Tensor, tap_major: bool, backend: str | None) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, positions), in memory as (B, positions, H, W) if ``tap_major``.

        A convolution's result is in memory as its input is. So tap-major logits cost one copy of the input of the last
        layer, which has fewer channels than the logits.
        """
        conv, activation, last = self
        x = activation(conv(x, backend))
        if tap_major:
            x = x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        return last(x)


def check_elsa(kernel_size: object, dilation: object, group_width: object, lam: object, gamma: object) -> None:
    """Check arguments of :class:`ELSA`, as mmattn/arguments.py does. ELSASwin has them even if no stage has ELSA."""
    check_odd('kernel_size', kernel_size)
    check_whole('dilation', dilation, most=1024)
    check_whole('group_width', group_width)
    check_ghost_head(lam, gamma)


def check_ghost_head(lam: object, gamma: object) -> None:
    """Check the numbers of equation 8."""
    check_finite('lam', lam)
    if lam < 0 or lam % 1 != 0:
        raise ValueError(
            f'lam must be a whole number >= 0, not {lam!r}: the multiplier may be negative and has no other powers'
        )
    check_finite('gamma', gamma)
