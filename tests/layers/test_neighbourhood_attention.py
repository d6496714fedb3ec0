import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.layers import NeighbourhoodAttention, WindowAttention
from mmattn.ops import neighbourhood_attention
from mmattn.weights import CheckpointError


def padded_as_released(layer, x):
    """The forward pass of NATTEN 0.14's NeighborhoodAttention2D: small maps are padded before the projection."""
    H, W = x.shape[1:3]
    side = layer.kernel_size * layer.dilation
    x = F.pad(x, (0, 0, 0, max(side - W, 0), 0, max(side - H, 0)))
    q, k, v = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).unbind(3)
    x = neighbourhood_attention(q, k, v, layer.rpb, layer.kernel_size, layer.dilation, backend='reference')
    return layer.proj(x.flatten(-2)[:, :H, :W])


@pytest.mark.parametrize('size', [(9, 8), (4, 11), (3, 2)])
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_small_maps_are_padded_as_released(size, qkv_bias):
    """Padding takes part as keys; the gradients of the projection's bias have its part."""
    layer = NeighbourhoodAttention(8, 2, kernel_size=3, dilation=2, qkv_bias=qkv_bias).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, *size, 8, dtype=torch.float64)
    results = []
    for path in (layer, lambda x: padded_as_released(layer, x)):
        out = path(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize('window_size', [3, 2, 5])
def test_starts_from_swin(window_size):
    """With the weights of Swin's attention, a map of one window has Swin's result. The tables of other windows are cut,
    or go on with their outermost biases."""
    swin = WindowAttention(8, 2, window_size=window_size).double().eval()
    released = {f'attn.{name}': tensor for name, tensor in swin.state_dict().items()}
    layer, kept = NeighbourhoodAttention(8, 2, kernel_size=3).double().eval(), dict(released)
    layer.load_state_dict(layer.warm_start(released, 'attn.'))
    assert not released
    table = swin.relative_position_bias_table.detach().t().flip(1).unflatten(1, (2 * window_size - 1, -1))
    table = F.pad(table, [max(3 - window_size, 0)] * 4, 'replicate')
    cut = slice(max(window_size - 3, 0), max(window_size - 3, 0) + 5)
    torch.testing.assert_close(layer.rpb.detach(), table[:, cut, cut])
    if window_size == 3:
        x = torch.randn(2, 3, 3, 8, dtype=torch.float64)
        torch.testing.assert_close(layer(x), swin(x))
    with pytest.raises(CheckpointError, match=r'attn.relative_position_bias_table \(24, 2\) instead of'):
        layer.warm_start(dict(kept, **{'attn.relative_position_bias_table': torch.zeros(24, 2)}), 'attn.')
