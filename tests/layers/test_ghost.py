import pytest
import torch
import torch.nn.functional as F

from mmattn.layers import LocalAttention, MeanShiftAttention, MeanShiftWindowAttention, WindowAttention


@pytest.mark.parametrize(
    'kind, settings, first',
    [
        (WindowAttention, dict(window_size=4, shift=2), 0),
        (LocalAttention, dict(window_size=4, shift=2), 0),
        (LocalAttention, dict(area='neighbours', kernel_size=3), 0),
        (MeanShiftWindowAttention, dict(window_size=4, shift=2, attention='residual'), 16),
        (MeanShiftAttention, dict(sharing='QKKPW'), 8),
    ],
)
@pytest.mark.parametrize('size', [(6, 9), (3, 3)])
def test_is_a_convolution_of_the_values(kind, settings, first, size):
    """It goes over the whole map, zero outside the image, and is added before the output projection. Windows, their
    shift and their padding do not matter. ``first`` is the first row of the projection to values."""
    torch.manual_seed(0)
    attention = kind(8, 2, ghost_size=3, **settings).double()
    x = torch.randn(2, *size, 8, dtype=torch.float64)
    without = attention(x)
    torch.nn.init.normal_(attention.ghost.weight)
    inner = getattr(attention, 'attn', attention)
    values = inner.pre_proj(x)[..., first : first + 8].permute(0, 3, 1, 2)
    summand = F.conv2d(values, attention.ghost.weight, padding=1, groups=8).permute(0, 2, 3, 1)
    torch.testing.assert_close(attention(x), without + summand @ inner.post_proj.weight.T)
