import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.analysis.complexity import count_operations
from mmattn.layers import RankAugmentedAttention, SelfAttention, SpatialReductionAttention


def rough(layer):
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def equation(layer, x, prefix):
    """The equation as it is written, one pair of tokens at a time. Positions turn pairs of channels as complex numbers,
    of which the first half has the angles of the row."""
    (_, H, W, C), P, heads = x.shape, prefix.shape[1], layer.num_heads
    tokens = torch.cat((prefix, x.flatten(1, 2)), 1)
    q, k, v = layer.qkv(tokens).unflatten(-1, (3, heads, -1)).unbind(2)
    q, k = (torch.where(each > 0, each + 1, each.exp()) for each in (q, k))
    N, d = tokens.shape[1], C // heads
    alpha = N * (torch.einsum('bnd,bjnd->bjn', q.mean(1), k) / d**0.5).softmax(1)
    places = [(0, 0)] * P + [(row, column) for row in range(H) for column in range(W)]
    steps = [layer.rope ** -(i / max(d // 4 - 1, 1)) for i in range(d // 4)] if layer.rope else []

    def turned(vectors, token):
        if not steps or token < P:
            return vectors
        angles = torch.tensor([place * step for place in places[token] for step in steps], dtype=torch.float64)
        pairs = torch.complex(*vectors.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pairs.real, pairs.imag), -1)

    out = []
    for i in range(N):
        above, below = 0, 0
        for j in range(N):
            product = (turned(q[:, i], i) * turned(k[:, j], j)).sum(-1)
            above = above + (alpha[:, j] * product)[..., None] * v[:, j]
            below = below + alpha[:, j] * (q[:, i] * k[:, j]).sum(-1)
        out.append((above / (below / N + 1e-6)[..., None] / N).flatten(1))
    out = torch.stack(out, 1)
    if layer.local_conv is not None:
        local = F.conv2d(
            v[:, P:].flatten(2).mT.unflatten(2, (H, W)), layer.local_conv.weight, layer.local_conv.bias, 1, 'same', 1, C
        )
        out = torch.cat((out[:, :P], out[:, P:] + local.flatten(2).mT), 1)
    out = layer.proj(out * layer.phi(tokens))
    return out[:, P:].view(x.shape), out[:, :P]


@pytest.mark.parametrize('size', [(3, 4), (1, 1), (5, 2)])
@pytest.mark.parametrize('settings', [dict(), dict(rope=100.0), dict(rope=10.0, local_size=3)], ids=str)
def test_computes_the_equation(settings, size):
    """With its gradients. Prefix tokens take part, and have no position."""
    layer = rough(RankAugmentedAttention(16, 2, **settings)).double()
    x, prefix = (torch.randn(2, *shape, 16, dtype=torch.float64, requires_grad=True) for shape in (size, (3,)))
    inputs = [x, prefix, *layer.parameters()]
    results = []
    for out in (layer(x, prefix), equation(layer, x, prefix)):
        gradients = torch.autograd.grad(sum((part * torch.arange(16)).cos().sum() for part in out), inputs)
        results.append([*out, *gradients])
    torch.testing.assert_close(*results)
    torch.testing.assert_close(layer(x), equation(layer, x, prefix[:, :0])[0])


def test_second_derivatives():
    layer = rough(RankAugmentedAttention(8, 2, rope=10.0, local_size=3)).double()
    x = torch.randn(1, 2, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Sums over many tokens are those of float32: in float16, the weights of so large a map would be zero."""
    layer, x = rough(RankAugmentedAttention(8, 2, rope=100.0)), torch.randn(1, 8, 9000, 8)
    layer.double().to(dtype)
    q, k, v = layer.qkv(x.to(dtype)).flatten(1, 2).chunk(3, -1)
    out = layer.attend(q, k, v, x.shape)
    expected = layer.attend(q.double(), k.double(), v.double(), x.shape)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected.to(dtype), atol=1e-3, rtol=torch.finfo(dtype).eps)


def test_cost_is_linear():
    """Four times as many tokens, four times as many operations."""
    layer = RankAugmentedAttention(16, 2, rope=100.0, local_size=5)
    once, again = (count_operations(lambda side=side: layer(torch.zeros(1, side, side, 16))) for side in (8, 16))
    assert again == 4 * once


@pytest.mark.parametrize('of_pvt', [False, True])
def test_starts_without_an_effect(of_pvt):
    """From plain attention and from PVTv2's, without the factor and the convolution. Where all keys are the same, both
    give the mean of the values."""
    source = rough(SpatialReductionAttention(16, 2, 1) if of_pvt else SelfAttention(16, 2, qkv_bias=True)).double()
    keys = source.kv.weight[:16] if of_pvt else source.qkv.weight[16:32]
    nn.init.zeros_(keys.data)
    layer = rough(RankAugmentedAttention(16, 2, local_size=3)).double()
    weights = {f'a.{name}': value for name, value in source.state_dict().items()}
    layer.load_state_dict(layer.from_pvt(weights, 'a.', 2) if of_pvt else layer.warm_start(weights, 'a.'))
    assert not weights
    x = torch.randn(2, 3, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(layer(x), source(x), atol=1e-5, rtol=1e-5)
