import pytest
import torch
import torch.nn.functional as F

from mmattn.layers import (
    LocalAttention,
    MeanShiftAttention,
    MeanShiftWindowAttention,
    ShuntedAttention,
    WindowAttention,
)


@pytest.mark.parametrize(
    'kind, settings, first',
    [
        (WindowAttention, dict(window_size=4, shift=2), 16),
        (LocalAttention, dict(window_size=4, shift=2), 0),
        (LocalAttention, dict(area='neighbours', kernel_size=3), 0),
        (MeanShiftWindowAttention, dict(window_size=4, shift=2, form='residual'), 16),
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
    names = ('qkv', 'proj') if kind is WindowAttention else ('pre_proj', 'post_proj')
    project, back = (getattr(inner, name) for name in names)
    values = project(x)[..., first : first + 8].permute(0, 3, 1, 2)
    summand = F.conv2d(values, attention.ghost.weight, padding=1, groups=8).permute(0, 2, 3, 1)
    torch.testing.assert_close(attention(x), without + summand @ back.weight.T)


def test_of_merged_values():
    """Shunted: a token gets the convolution of its group's merged values, at the merged token that it is part of. The
    lower right merged tokens are only partly on the map."""
    torch.manual_seed(0)
    layer = ShuntedAttention(8, 2, [3, 2], ghost_size=3).double()
    x = torch.randn(2, 5, 7, 8, dtype=torch.float64)
    without = layer(x)
    summands = []
    for ghost, rate, (_, value) in zip((layer.ghost1, layer.ghost2), layer.rates, layer.keys_values(x)):
        torch.nn.init.normal_(ghost.weight)
        merged = F.conv2d(value.permute(0, 3, 1, 2), ghost.weight, padding=1, groups=4).permute(0, 2, 3, 1)
        summands.append(torch.stack([merged[:, i // rate, j // rate] for i in range(5) for j in range(7)], 1))
    expected = without + torch.cat(summands, -1).view(x.shape) @ layer.proj.weight.T
    torch.testing.assert_close(layer(x), expected)
