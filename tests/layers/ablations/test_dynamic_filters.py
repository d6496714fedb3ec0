import itertools
import math

import pytest
import torch

from mmattn.layers import DecoupledDynamicFilter, DepthwiseConv, DynamicDepthwiseConv, LocalAttention
from mmattn.layers.ablations.dynamic_filters import filter_norm

LAYERS = {
    'DwConv': lambda dim, **settings: DepthwiseConv(dim, **settings),
    'DwConv of 2 filters': lambda dim, **settings: DepthwiseConv(dim, filters=2, **settings),
    'D-DwConv': DynamicDepthwiseConv,
    'DDF': DecoupledDynamicFilter,
    'DDF, sum': lambda dim, **settings: DecoupledDynamicFilter(dim, combination='sum', **settings),
}
every_layer = pytest.mark.parametrize('name', LAYERS)


def normalised(x):
    """Mean 0 and unbiased variance 1, of one vector."""
    x = x - x.sum() / len(x)
    return x / ((x @ x / (len(x) - 1)).sqrt() + 1e-10)


def filters_by_hand(layer, value, c):
    """The function of a pixel that makes the k * k numbers of channel c, and the channel's bias."""
    mean = value.flatten(0, 1).mean(0)
    if isinstance(layer, DepthwiseConv):
        weight, C = layer.conv.weight, value.shape[-1]
        return lambda pixel: weight[c // (C // len(weight)), 0].flatten(), layer.conv.bias[c]
    if isinstance(layer, DynamicDepthwiseConv):
        norm = layer.norm
        hidden = (layer.reduce.weight @ mean - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        made = layer.expand((hidden * norm.weight + norm.bias).clamp(min=0))
        return lambda pixel: made.view(len(mean), -1)[c], layer.bias[c]
    k = layer.kernel_size
    channel = normalised(layer.expand(layer.reduce(mean).clamp(min=0)).view(len(mean), -1)[c]) * layer.scale[c]

    def combined(pixel):
        spatial = normalised(layer.spatial(pixel)) * math.sqrt(2) / k
        return spatial * channel if layer.settings['combination'] == 'mul' else spatial + channel

    return combined, 0


def by_hand(layer, x):
    """One image, pixel, channel and neighbour at a time."""
    value = layer.pre_proj(x)
    B, H, W, C = x.shape
    k, out = layer.kernel_size, torch.zeros_like(x)
    for b, c in itertools.product(range(B), range(C)):
        make, bias = filters_by_hand(layer, value[b], c)
        for y, xx in itertools.product(range(H), range(W)):
            weights = make(value[b, y, xx])
            out[b, y, xx, c] = bias
            for j, (dy, dx) in enumerate(itertools.product(range(-(k // 2), k // 2 + 1), repeat=2)):
                if 0 <= y + dy < H and 0 <= xx + dx < W:
                    out[b, y, xx, c] += weights[j] * value[b, y + dy, xx + dx, c]
    return layer.post_proj(out)


@every_layer
@pytest.mark.parametrize('H, W', [(1, 2), (4, 5)])
def test_definition(name, H, W):
    """Each filter as defined, for two images with filters of their own, maps smaller than the kernel included."""
    layer = LAYERS[name](8, kernel_size=3).double().eval()
    if hasattr(layer, 'norm'):
        torch.nn.init.normal_(layer.norm.running_mean, std=0.1)
        torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, H, W, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_hand(layer, x))


@every_layer
def test_half_precision_and_no_images(name):
    """bfloat16 is near float64, also under autocast. A batch of no images has gradients of zero."""
    layer, x = LAYERS[name](16).double(), torch.randn(2, 9, 8, 16, dtype=torch.float64)
    exact = layer(x)
    with torch.autocast('cpu', torch.bfloat16):
        mixed = layer.float()(x.float())
    layer = layer.bfloat16()
    half = layer(x.bfloat16())
    half.sum().backward()
    assert half.dtype == mixed.dtype == torch.bfloat16 and all(p.grad.isfinite().all() for p in layer.parameters())
    for out in (half, mixed):
        assert (out - exact).abs().max() < 0.1 * exact.abs().max()
    layer.zero_grad()
    layer(x[:0].bfloat16()).sum().backward()
    assert not any(p.grad.any() for p in layer.parameters())


def test_static_filters_are_equation_4():
    """A depth-wise convolution with the filters of heads is equation 4 with only the bias, without a norm, in
    neighbourhoods; its own bias passes the output projection."""
    conv = DepthwiseConv(6, kernel_size=3, filters=2)
    paradigm = LocalAttention(6, 2, terms=['b'], area='neighbours', norm='identity', kernel_size=3)
    torch.nn.init.zeros_(conv.conv.bias)
    state = conv.state_dict()
    paradigm.load_state_dict(
        {'rb': state.pop('conv.weight').flatten(1), **{k: v for k, v in state.items() if 'conv' not in k}}
    )
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(conv(x), paradigm(x))


def test_equal_numbers_normalise_to_zero():
    """Also in half precision, which has no 1e-10."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert torch.equal(filter_norm(torch.full((1, 9), 0.5, dtype=dtype)), torch.zeros(1, 9, dtype=dtype))


@pytest.mark.slow
@pytest.mark.usefixtures('torch_compiles')
@every_layer
def test_compiled(name):
    """One graph serves maps of any size."""
    layer = LAYERS[name](8, kernel_size=3).eval()
    compiled = torch.compile(layer, fullgraph=True, backend='aot_eager', dynamic=True)
    for H, W in ((7, 8), (4, 9)):
        x = torch.randn(2, H, W, 8)
        torch.testing.assert_close(compiled(x), layer(x))
