import pytest
import timm.models.volo
import torch
from torch import nn

from mmattn.layers import OutlookAttention, SelfAttention

SIZES = [(4, 6), (5, 7), (6, 3), (1, 1), (2, 1)]


def drawn(layer):
    """Double precision, and weights that make a difference."""
    for parameter in layer.double().parameters():
        nn.init.normal_(parameter)
    return layer.eval()


@pytest.mark.parametrize('size', SIZES)
def test_outlook_attention_by_loops(size):
    """Every place, head, row and column of the 9 x 9 matrices by itself, also on maps of odd sides."""
    H, W = size
    layer = drawn(OutlookAttention(6, 2))
    x = torch.randn(2, H, W, 6, dtype=torch.float64)
    value, expected = layer.v(x), torch.zeros_like(x)
    for b in range(2):
        for row in range(0, H, 2):
            for column in range(0, W, 2):
                pooled = x[b, row : row + 2, column : column + 2].mean((0, 1))
                weights = (layer.attn(pooled).view(2, 9, 9) * 3**-0.5).softmax(-1)
                patch = [(row + dy, column + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
                inside = {i: place for i, place in enumerate(patch) if 0 <= place[0] < H and 0 <= place[1] < W}
                for i, target in inside.items():
                    for j, source in inside.items():
                        mixed = value[b][source].view(2, 3) * weights[:, i, j, None]
                        expected[b][target] += mixed.flatten()
    torch.testing.assert_close(layer(x), layer.proj(expected))


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('name', ['OutlookAttention', 'SelfAttention'])
def test_attentions_of_timm(name, size):
    """The same tensors give the same result and the same gradients."""
    if name == 'OutlookAttention':
        ours, reference = OutlookAttention(8, 2), timm.models.volo.OutlookAttention(8, 2, stride=2)
    else:
        ours, reference = SelfAttention(8, 2), timm.models.volo.Attention(8, 2)
    drawn(ours).load_state_dict(drawn(reference).state_dict())
    x = torch.randn(2, *size, 8, dtype=torch.float64)
    results = []
    for layer in (ours, reference):
        given = x.clone().requires_grad_()
        layer(given).square().sum().backward()
        results.append([layer(given), given.grad])
    torch.testing.assert_close(*results)


def test_dropout_of_weights():
    """It is drawn in training only."""
    for layer in (OutlookAttention(8, 2, attn_drop_rate=0.5), SelfAttention(8, 2, attn_drop_rate=0.5)):
        x = torch.randn(1, 4, 4, 8)
        assert not torch.equal(layer(x), layer(x))
        assert torch.equal(layer.eval()(x), layer(x))
