from torch import Tensor, nn

from ..arguments import check_heads, check_odd, check_rates, check_whole
from ..ops.depthwise_conv import depthwise_conv
from .token_mixer import TOKEN_MIXERS


class ValueFilter(nn.Module):
    """Value projection, ``filter`` of a subclass on k x k neighbourhoods, output projection.

    Args:
        dim: channels C.
        kernel_size: side k of the filters, odd.
        drop_rate: dropout of the output.

    Raises:
        ValueError: if an argument, also of a subclass, is wrong; the message names it.
    """

    def __init__(self, dim: int, kernel_size: int = 7, drop_rate: float = 0.0) -> None:
        super().__init__()
        check_whole('dim', dim)
        check_odd('kernel_size', kernel_size)
        check_rates(drop_rate=drop_rate)
        self.kernel_size = kernel_size
        self.pre_proj = nn.Linear(dim, dim)
        self.post_proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop_rate)

    def filter(self, value: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, C)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, H, W, C) -> (B, H, W, C)."""
        return self.drop(self.post_proj(self.filter(self.pre_proj(x))))


@TOKEN_MIXERS.register_module()
class DepthwiseConv(ValueFilter):
    """Depth-wise convolution, zero outside the map ("DwConv" of "ELSA: Enhanced Local
    Self-Attention").

    Args:
        filters: number of filters, divides ``dim``; each serves as many consecutive channels, as the weights of an
            attention head do (figure 2). By default every channel has its own (table 5). The bias has C numbers.

    Further arguments, and errors: see :class:`ValueFilter`.
    """

    def __init__(self, dim: int, *, kernel_size: int = 7, filters: int | None = None, drop_rate: float = 0.0) -> None:
        super().__init__(dim, kernel_size, drop_rate)
        filters = dim if filters is None else filters
        check_heads(dim, filters, 'filters')
        self.conv = nn.Conv2d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.conv.weight = nn.Parameter(self.conv.weight.detach()[:filters].clone())

    def filter(self, value: Tensor) -> Tensor:
        C = value.shape[-1]
        weight = self.conv.weight.repeat_interleave(C // len(self.conv.weight), 0)
        return depthwise_conv(value, weight, self.conv.bias)
