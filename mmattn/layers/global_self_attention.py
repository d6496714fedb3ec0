import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..ops.global_self_attention import BEYOND, axial_attention, content_attention
from .norm import batch_norm


class GlobalSelfAttention(nn.Module):
    """Global self-attention module ("Global Self-Attention Networks for Image Recognition", section 3.1, equations 1 to
    8): content attention to all pixels, plus positional attention along the column and then along the row.

    It stands in for a 3 x 3 convolution: no bias, no output projection, a batch norm is expected to follow. Of the
    three parts any one or two may be left out (table 4), with what only they need: without content there are no keys,
    and the batch norm stands between columns and rows, so it needs both.

    Args:
        dim: channels C of input, query, key, value and output.
        num_heads: attention heads; divides ``dim``.
        rel_pos_length: L, the longest side of a map whose pixels all have a relative position of their own. The two
            tables have 2L - 1 rows.
        content: attend by content (equation 4).
        column: attend along columns by relative position (equation 7).
        row: attend along rows by relative position.
        beyond: what becomes of pixels farther than L - 1 apart: 'stretch' the tables to the map, 'mask' those pixels.
            See :func:`mmattn.ops.axial_attention`.
        norm_cfg: batch norm between columns and rows, see :func:`mmattn.layers.batch_norm`.

    Raises:
        ValueError: for an argument that cannot be, naming it.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        rel_pos_length: int = 56,
        content: bool = True,
        column: bool = True,
        row: bool = True,
        beyond: str = 'stretch',
        norm_cfg: dict = dict(type='BN'),
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f'num_heads {num_heads} does not divide the {dim} channels of its map')
        if rel_pos_length < 1:
            raise ValueError(f'rel_pos_length must be at least 1, not {rel_pos_length}')
        if not (content or column or row):
            raise ValueError('one of content, column and row must be True')
        if beyond not in BEYOND:
            raise ValueError(f'beyond must be one of {", ".join(BEYOND)}, not {beyond!r}')
        self.num_heads = num_heads
        self.beyond = beyond

        # MMCV's fuse_conv_bn takes a norm to follow the convolution registered before it; this one follows attention.
        self.bn = batch_norm(dim, norm_cfg) if column and row else None
        self.query = nn.Conv2d(dim, dim, 1, bias=False)
        self.key = nn.Conv2d(dim, dim, 1, bias=False) if content else None
        self.value = nn.Conv2d(dim, dim, 1, bias=False)
        shape, std = (2 * rel_pos_length - 1, dim // num_heads), (dim // num_heads) ** -0.5
        self.rel_col = nn.Parameter(nn.init.normal_(torch.empty(shape), std=std)) if column else None
        self.rel_row = nn.Parameter(nn.init.normal_(torch.empty(shape), std=std)) if row else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, C, H, W) -> (B, C, H, W)."""
        query, value = self._split(self.query(x)), self._split(self.value(x))  # eq. 3
        if value.dtype == torch.float16:  # float32 under autocast, where float16 may not hold what attention returns
            value = value.to(self.value.weight.dtype)
        positional = value
        if self.rel_col is not None:
            positional = axial_attention(query, positional, self.rel_col, 1, self.beyond)
        if self.bn is not None:
            positional = self._split(self.bn(self._merge(positional)))
        if self.rel_row is not None:
            positional = axial_attention(query, positional, self.rel_row, 2, self.beyond)
        if self.key is None:
            return self._merge(positional)
        if torch.is_grad_enabled() and x.device.type != 'meta':  # there is nothing to save, and torch 2.1 fails
            content = checkpoint(self._content, x, query, value, use_reentrant=False, preserve_rng_state=False)
        else:
            content = self._content(x, query, value)
        return self._merge(content if positional is value else content + positional)  # eq. 8

    def _content(self, x: Tensor, query: Tensor, value: Tensor) -> Tensor:
        """Content attention. Made anew in the backward pass, as is cheap, for it would keep a map of keys and, of
        several pictures, three copies of maps."""
        return content_attention(query, self._split(self.key(x)), value)

    def _split(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H, W, heads, C / heads), a view."""
        return x.permute(0, 2, 3, 1).unflatten(-1, (self.num_heads, -1))

    def _merge(self, x: Tensor) -> Tensor:
        """The inverse of ``_split``."""
        return x.flatten(-2).permute(0, 3, 1, 2)
