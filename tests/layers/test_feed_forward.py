import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from mmattn import ops
from mmattn.layers import FEED_FORWARD
from tests.layers.test_shunted import tokens


@pytest.mark.parametrize('form', FEED_FORWARD)
def test_feed_forward_equals_its_equation(form):
    """Table 9: linear layers alone, with a convolution between them, and with the sum of equation 3. 'glu': a gate."""
    layer = FEED_FORWARD[form](4, 8).double()
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    hidden, value = layer.fc1(x), 1
    if form == 'glu':
        hidden, value = hidden.chunk(2, -1)
    if form != 'plain':
        hidden = tokens(layer.dwconv, hidden) + (hidden if form == 'detail' else 0)
    torch.testing.assert_close(layer(x), layer.fc2(F.gelu(hidden) * value))


@given(
    form=st.sampled_from(list(FEED_FORWARD)),
    batch=st.integers(1, 3),
    height=st.integers(1, 9),
    width=st.integers(1, 5),
    numbers=st.integers(1, 400),
)
def test_parts_are_the_whole(form, batch, height, width, numbers):
    """Inference in parts, of rows or of samples, is the same as in one part, at the borders between parts too."""
    layer = FEED_FORWARD[form](4, 8).double()
    layer.fc1 = torch.nn.Sequential(layer.fc1)  # like LoRA's, it does not tell its size
    x = torch.randn(batch, height, width, 4, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(ops.tokens, 'MAX_HIDDEN', numbers)
        parts = layer(x)
    torch.testing.assert_close(parts, layer(x))


@pytest.mark.parametrize('form', FEED_FORWARD)
def test_hidden_maps_are_small(form, monkeypatch):
    """In inference, no hidden map has more numbers than the limit, but for the rows around a part of a convolution. In
    training, the map is computed at once."""
    monkeypatch.setattr(ops.tokens, 'MAX_HIDDEN', 200)
    layer, sizes = FEED_FORWARD[form](4, 8), []
    layer.fc1.register_forward_hook(lambda layer, inputs, out: sizes.append(out.numel()))
    x = torch.randn(2, 12, 5, 4)
    layer(x)
    assert sizes == [2 * 12 * 5 * layer.hidden_dim]
    sizes.clear()
    with torch.no_grad():
        layer(x)
    assert len(sizes) == 2 * 3 and max(sizes) == 200 + 2 * layer.halo * 5 * layer.hidden_dim
