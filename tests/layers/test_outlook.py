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
