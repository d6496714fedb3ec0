import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..ops.global_self_attention import BEYOND, axial_attention, content_attention
from .checks import check_whole
from .mechanism import MECHANISMS
from .norm import batch_norm


@MECHANISMS.register_module()
class GlobalSelfAttention(nn.Module):
    """Global self-attention module ("Global Self-Attention Networks for Image Recognition", section 3.1, equations 1 to
    8): content attention to all pixels, plus positional attention along the column and then along the row.

    It replaces a 3 x 3 convolution: it has no bias and no output projection, and a batch norm follows it. One or two of
    the three parts may be left out (table 4). Without content there are no keys; without columns or rows there is no
    batch norm between them.

    Args:
        dim: channels C of input, query, key, value and output.
        num_heads: attention heads; divides ``dim``.
        rel_pos_length: L, the longest side of a map for which every relative position has an embedding. The two tables
            have 2L - 1 rows.
        content: attend by content (equation 4).
        column: attend along columns by relative position (equation 7).
        row: attend along rows by relative position.
        beyond: for pixels farther than L - 1 apart: 'stretch' the tables to the map, or 'mask' those pixels. See
            :func:`mmattn.ops.axial_attention`.
        norm_cfg: batch norm between columns and rows, see :func:`mmattn.layers.batch_norm`.

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
        rel_pos_length: int = 56,
        content: bool = True,
        column: bool = True,
        row: bool = True,
        beyond: str = 'stretch',
        norm_cfg: dict = dict(type='BN'),
    ) -> None:
        super().__init__()
        check_whole('num_heads', num_heads)
        check_whole('rel_pos_length', rel_pos_length)
        if dim % num_heads:
            raise ValueError(f'num_heads {num_heads} does not divide the {dim} channels of its map')
        if not (content or column or row):
            raise ValueError('one of content, column and row must be True')
        if beyond not in BEYOND:
            raise ValueError(f'beyond must be one of {", ".join(BEYOND)}, not {beyond!r}')
        self.num_heads = num_heads
        self.beyond = beyond
        self.backend: str | None = None

        # Registered before the convolutions: MMCV's fuse_conv_bn joins a norm with the convolution before it, but this
        # norm follows attention.
        self.bn = batch_norm(dim, norm_cfg) if column and row else None
        self.query = nn.Conv2d(dim, dim, 1, bias=False)
        self.key = nn.Conv2d(dim, dim, 1, bias=False) if content else None
        self.value = nn.Conv2d(dim, dim, 1, bias=False)
        shape = 2 * rel_pos_length - 1, dim // num_heads
        std = (rel_pos_length * shape[1]) ** -0.5  # No softmax divides the sum over the pixels of a line.
        self.rel_col = nn.Parameter(nn.init.normal_(torch.empty(shape), std=std)) if column else None
        self.rel_row = nn.Parameter(nn.init.normal_(torch.empty(shape), std=std)) if row else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> (B, C, H, W)."""
        query, value = self._split(self.query(x)), self._split(self.value(x))  # eq. 3
        if value.dtype == torch.float16:  # under autocast: the result of attention may be too large for float16
            value = value.to(self.value.weight.dtype)
        positional = value
        if self.rel_col is not None:
            positional = axial_attention(query, positional, self.rel_col, 1, self.beyond, backend=self.backend)
        if self.bn is not None:
            positional = self._split(self.bn(self._merge(positional)))
        if self.rel_row is not None:
            positional = axial_attention(query, positional, self.rel_row, 2, self.beyond, backend=self.backend)
        if self.key is None:
            return self._merge(positional)
        if torch.is_grad_enabled() and x.device.type != 'meta':  # meta: nothing to save, and torch 2.1 fails
            content = checkpoint(self._content, x, query, value, use_reentrant=False, preserve_rng_state=False)
        else:
            content = self._content(x, query, value)
        return self._merge(content if positional is value else content + positional)  # eq. 8

    def _content(self, x: Tensor, query: Tensor, value: Tensor) -> Tensor:
        """Content attention. The backward pass computes it again, which is cheap; otherwise it would keep a map of keys
        and, for batches, three more copies of maps."""
        return content_attention(query, self._split(self.key(x)), value, backend=self.backend)

    def _split(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H, W, heads, C / heads), a view."""
        return x.permute(0, 2, 3, 1).unflatten(-1, (self.num_heads, -1))

    def _merge(self, x: Tensor) -> Tensor:
        """The inverse of ``_split``."""
        return x.flatten(-2).permute(0, 3, 1, 2)
