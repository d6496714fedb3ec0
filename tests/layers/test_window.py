import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmattn.layers import WindowAttention
from mmattn.layers.window import relative_bias, shift_mask


def by_hand(layer: WindowAttention, x: torch.Tensor) -> torch.Tensor:
    """Window attention over every pair of padded pixels, masked to pairs of one window and one region."""
    B, H, W, C = x.shape
    w, s, heads = layer.window_size, layer.shift, layer.num_heads
    padded = F.pad(x, (0, 0, 0, -W % w, 0, -H % w))
    Hp, Wp = padded.shape[1:3]
    v, q, k = layer.pre_proj(padded).view(B, Hp * Wp, 3, heads, C // heads).permute(2, 0, 3, 1, 4)
    y, xx = (t.flatten() for t in torch.meshgrid(torch.arange(Hp), torch.arange(Wp), indexing='ij'))
    # A shifted window is a window over positions displaced by -s; what wraps around is apart.
    window = torch.stack(((y - s) % Hp // w, (xx - s) % Wp // w, (y < s) * s, (xx < s) * s), -1)
    same = (window[:, None] == window[None]).all(-1)
    ys, xs = (y - s) % Hp, (xx - s) % Wp
    offset = (ys[None] - ys[:, None] + w - 1) * (2 * w - 1) + xs[None] - xs[:, None] + w - 1
    bias = layer.rb[:, offset.clamp(0, layer.rb.shape[1] - 1)]
    scores = (q @ k.transpose(-1, -2) * (C // heads) ** -0.5 + bias).masked_fill(~same, float('-inf'))
    out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, Hp, Wp, C)
    return layer.post_proj(out)[:, :H, :W]


@settings(max_examples=25, deadline=None)
@given(H=st.integers(1, 11), W=st.integers(1, 11), w=st.integers(2, 4), shifted=st.booleans(), B=st.integers(1, 2))
def test_equals_masked_global_attention(H, W, w, shifted, B):
    """Padding, cyclic shift and mask together compute attention within windows, at any size and batch."""
    layer = WindowAttention(8, 2, window_size=w, shift=w // 2 if shifted else 0).double()
    torch.nn.init.normal_(layer.rb)
    x = torch.randn(B, H, W, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_hand(layer, x))


def test_bias_is_indexed_by_key_minus_query():
    """The reverse of Swin's: for query (0, 0) and key (1, 0) of a 2 x 2 window, offset (1, 0)."""
    bias = relative_bias(torch.arange(9)[None], 2)
    assert bias.shape == (1, 4, 4) and bias[0, 0, 2] == (1 + 1) * 3 + (0 + 1)


@pytest.mark.parametrize('rows, columns', [(1, 1), (1, 2), (3, 2)])
def test_mask_is_symmetric_and_keeps_self(rows, columns):
    mask = shift_mask(rows, columns, 4, (2, 2))
    assert torch.equal(mask, mask.transpose(1, 2)) and (mask.diagonal(dim1=1, dim2=2) == 0).all()
    assert mask.shape == (rows * columns, 16, 16) and (mask[-1] < 0).any()
