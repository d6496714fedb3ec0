from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..arguments import check_choice, check_flags, check_heads, check_odd, check_whole
from ..ops.any_size import ceil_div
from ..ops.backend import is_half
from ..ops.batch_norm import kernels_serve
from ..ops.global_self_attention import (
    BEYOND,
    axial_attention,
    content_attention,
    content_context,
    projected_attention,
    uses_kernels,
)
from ..ops.recompute import recompute
from ..ops.tokens import batch_normed
from .casts import is_plain
from .norm import BATCH_NORMS, batch_norm
from .token_conv import TokenConv2d
from .token_mixer import TOKEN_MIXERS

#: side of the images, in pixels, that tables of relative positions are for where nobody says another
DEFAULT_SIDE = 224


@TOKEN_MIXERS.register_module()
class GlobalSelfAttention(nn.Module):
    """Global self-attention module ("Global Self-Attention Networks for Image Recognition", section 3.1, equations 1 to
    8): content attention to all pixels, plus positional attention along the column and then along the row.

    One or two of the three parts may be left out (table 4). Without content there are no keys; without columns or rows
    there is no batch norm between them.

    Args:
        dim: channels C of input, query, key, value and output.
        num_heads: attention heads; divides ``dim``.
        stride: of the map, in pixels of the image.
        rel_pos_length: L, the longest side of a map for which every relative position has an embedding. The two tables
            have 2L - 1 rows. None: that of a 224 x 224 image, 224 / ``stride``.
        neighbourhood: odd side of the square of pixels that positional attention, or axial content, is limited to (L
            of the paper's equation 2), in pixels of the map; None: the whole map. It replaces ``rel_pos_length`` and
            ``beyond``: tables have this many rows. Sums still run over whole lines, at their cost.
        content: attend by content (equation 4). 'axial': not to all pixels at once, but along columns and rows,
            together with the positions (table 2, "axial content and positional attention").
        column: attend along columns by relative position (equation 7).
        row: attend along rows by relative position.
        axial_softmax: softmax of the products along columns and rows. The paper's positional attention has none. For
            axial content, the paper does not say it; the similar work that it names has a softmax. The default is none.
        softmax_queries: softmax of the queries of content attention, over their channels. The paper tried it, and left
            it out (section 3.1).
        beyond: for pixels farther than L - 1 apart: 'mask' those pixels, or 'stretch' the tables to the map. See
            :func:`mmattn.ops.axial_attention`.
        project: a batch norm and a 1 x 1 convolution with bias follow. False in a bottleneck, which has its own.
        norm_cfg: batch norms, see :func:`mmattn.layers.batch_norm`.

    Attributes:
        backend: of :func:`mmattn.ops.content_attention` and :func:`mmattn.ops.axial_attention`; None chooses the
            fastest.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        stride: int = 4,
        rel_pos_length: int | None = None,
        neighbourhood: int | None = None,
        content: bool | str = True,
        column: bool = True,
        row: bool = True,
        axial_softmax: bool = False,
        softmax_queries: bool = False,
        beyond: str = 'mask',
        project: bool = True,
        norm_cfg: dict = dict(type='BN'),
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_choice('beyond', beyond, BEYOND)
        check_flags(
            column=column, row=row, axial_softmax=axial_softmax, softmax_queries=softmax_queries, project=project
        )
        #: whether positional attention ends at DEFAULT_SIDE, and nobody has chosen this
        self.ends_by_default = beyond == 'mask' and rel_pos_length is None and neighbourhood is None and (column or row)
        rel_pos_length = table_length(stride, rel_pos_length)
        if neighbourhood is not None:
            check_odd('neighbourhood', neighbourhood)
            rel_pos_length, beyond = neighbourhood // 2 + 1, 'mask'
        if not isinstance(content, bool) and content != 'axial':
            raise ValueError(f"content must be True, False or 'axial', not {content!r}")
        if not (content is True or column or row):
            raise ValueError('one of content, column and row must be True; axial content needs column or row')
        if softmax_queries and content is not True:
            raise ValueError(f'softmax_queries is of content attention: content must be True, not {content!r}')
        self.num_heads = num_heads
        self.content = content
        self.axial_softmax = axial_softmax
        self.softmax_queries = softmax_queries
        self.beyond = beyond
        self.backend: str | None = None
        self.settings = dict(
            content=content, axial_softmax=axial_softmax, softmax_queries=softmax_queries, beyond=beyond
        )

        # Registered before the convolutions: MMCV's fuse_conv_bn joins a norm with the convolution before it, but these
        # norms follow attention.
        self.bn = batch_norm(dim, norm_cfg) if column and row else None
        self.norm = batch_norm(dim, norm_cfg) if project else None
        self.query = TokenConv2d(dim, dim, 1, bias=False)
        key = TokenConv2d if content == 'axial' else PixelsLast
        self.key = key(dim, dim, 1, bias=False) if content else None
        self.value = TokenConv2d(dim, dim, 1, bias=False)
        self.proj = TokenConv2d(dim, dim, 1) if project else None
        shape = 2 * rel_pos_length - 1, dim // num_heads
        std = (rel_pos_length * shape[1]) ** -0.5  # No softmax divides the sum over the pixels of a line.
        self.rel_col = nn.Parameter(nn.init.normal_(torch.empty(shape), std=std)) if column else None
        self.rel_row = nn.Parameter(nn.init.normal_(torch.empty(shape), std=std)) if row else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        query, value, key, maps = self._projected(x)  # eq. 3
        axial = key if self.content == 'axial' else None
        fused = self.content != 'axial' and not self.axial_softmax
        fused = fused and (uses_kernels(query, value) if self.backend is None else self.backend == 'triton')
        # under autocast: the result of attention may be too large for float16
        dtype = self.value.weight.dtype if value.dtype == torch.float16 else value.dtype
        if fused and maps is not None and self._is_one_function(x):
            tensors = self.rel_col, self.rel_row, self.bn.weight, self.bn.bias
            settings = dict(backend='triton', norm=self.bn, dtype=dtype)
            return self._out(projected_attention(maps, *tensors, self.bn.eps, self.beyond, **settings))
        if not fused:
            value = value.to(dtype)
        norm = statistics(self.bn) if fused else None
        context = None
        if fused and self.content and self.rel_row is not None and not self.softmax_queries:
            context = content_context(self._split(self.key(x)) if key is None else key, value, self.backend)
        out = value
        if self.rel_col is not None:
            out = self._along(1, query, axial, out, self.rel_col, norm=norm, dtype=dtype)
        if self.bn is not None and norm is None:
            out = batch_normed(self.bn, out)
        if self.rel_row is not None:
            out = self._along(2, query, axial, out, self.rel_row, context=context, dtype=dtype)
        if self.content is True and context is None:
            content = recompute(self._content, x, query, value.to(dtype), key, modules=[self.key], random=False)
            out = content if out is value else content + out  # eq. 8
        return self._out(out)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Query, value and, if it is axial or one product makes all three, key: (B, H, W, heads, C / heads); and what
        that product makes, (B, H, W, 3, heads, C / heads)."""
        at_once = is_half(x) or self.backend == 'triton'
        layers = [self.query, self.value]
        if self.content == 'axial' or self.content and at_once:
            layers.append(self.key)
        joint = joint_projection(layers, x) if at_once else None
        each = (layer(x) for layer in layers) if joint is None else joint.unbind(-2)
        query, value, *keys = map(self._split, each)
        return query, value, *(keys or [None]), None if joint is None or not keys else self._split(joint)

    def _is_one_function(self, x: Tensor) -> bool:
        """Whether one function of autograd does what follows the product of all three projections."""
        if self.bn is None or self.content is not True or self.softmax_queries or not torch.is_grad_enabled():
            return False
        return kernels_serve(self.bn, x.permute(0, 3, 1, 2))

    def _out(self, x: Tensor) -> Tensor:
        """What follows attention, from (B, H, W, heads, C / heads) to (B, H, W, C)."""
        x = x.flatten(-2)
        return x if self.proj is None else self.proj(self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))

    def _along(
        self, dim: int, query: Tensor, key: Tensor | None, value: Tensor, table: Tensor, **others: object
    ) -> Tensor:
        return axial_attention(
            query, value, table, dim, self.beyond, self.backend, key=key, softmax=self.axial_softmax, **others
        )

    def _content(self, x: Tensor, query: Tensor, value: Tensor, key: Tensor | None = None) -> Tensor:
        """Content attention. The backward pass computes it again, which is cheap; otherwise it would keep a map of keys
        and, for batches, three more copies of maps."""
        if self.softmax_queries:
            query = query.softmax(-1).to(query.dtype)
        return content_attention(query, self._split(self.key(x)) if key is None else key, value, self.backend)

    def _split(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., heads, C / heads), a view."""
        return x.unflatten(-1, (self.num_heads, -1))


class PixelsLast(TokenConv2d, nn.Conv2d):
    """A 1 x 1 convolution of tokens, whose result is stored as a (B, C, H, W) map: a softmax over pixels is faster. The
    kernels of a GPU take either."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, in_channels) -> (B, H, W, out_channels)."""
        if is_half(x):
            return super().forward(x)
        out = self.weight.flatten(1) @ x.flatten(1, 2).mT
        return out.mT.unflatten(1, x.shape[1:3])


def joint_projection(layers: Sequence[nn.Module], x: Tensor) -> Tensor | None:
    """Results of 1 x 1 convolutions of the same tokens, by one product; None if they are not as this file makes them,
    or have hooks.

    Args:
        layers: from C channels to as many.
        x: (B, H, W, C).

    Returns:
        (B, H, W, layers, C).
    """
    if not all(is_plain(layer, TokenConv2d, PixelsLast) and layer.bias is None for layer in layers):
        return None
    weight = torch.cat([layer.weight for layer in layers])
    return F.conv2d(x.permute(0, 3, 1, 2), weight).permute(0, 2, 3, 1).unflatten(-1, (len(layers), -1))


def statistics(norm: nn.Module | None) -> tuple[Tensor, Tensor, Tensor, Tensor, float] | None:
    """Mean, variance, weight, bias and epsilon of a batch norm in inference; None if it must be called."""
    if torch.is_grad_enabled() or not is_plain(norm, *BATCH_NORMS.values()) or norm.training:
        return None
    tensors = norm.running_mean, norm.running_var, norm.weight, norm.bias
    return None if any(x is None for x in tensors) else (*tensors, norm.eps)


def table_length(stride: int, rel_pos_length: int | None) -> int:
    """The longest side of a map with an embedding for every relative position.

    Raises:
        ValueError: if an argument is wrong; the message names it.
    """
    check_whole('stride', stride)
    if rel_pos_length is None:
        return ceil_div(DEFAULT_SIDE, stride)
    check_whole('rel_pos_length', rel_pos_length)
    return rel_pos_length
