"""How TransNeXt's attention starts from the weights of others, and what shunted attention is as PVTv2's."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mmattn.layers.shunted
from mmattn.layers import (
    AggregatedAttention,
    CosineAttention,
    NeighbourhoodAttention,
    SelfAttention,
    ShuntedAttention,
    SpatialReductionAttention,
    WindowAttention,
)
from mmattn.layers.starts import pvt_of_shunted
from mmattn.weights import CheckpointError

DIM, HEADS, SIDE = 16, 2, 4
#: the map of an image of this size has SIDE pixels
AT_SIDE = dict(stride=16, pretrain_size=16 * SIDE)


def rough(layer):
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double().eval()


def with_prefix(source, **norm):
    """The weights of a source in a block, whose norm before attention has one number for all channels."""
    weights = {f'attn.{name}': value for name, value in source.state_dict().items()}
    return weights | {f'norm1.{kind}': torch.full((DIM,), value).double() for kind, value in norm.items()}


def started(layer, given, *of_pvt):
    layer = layer.double().eval()
    start = layer.from_pvt(given, 'attn.', *of_pvt) if of_pvt else layer.warm_start(given, 'attn.')
    assert not [name for name in given if name.startswith('attn.')]
    kept = layer.load_state_dict(start, strict=False).missing_keys
    assert set(kept) == {'cpb_fc1.weight', 'cpb_fc1.bias'}
    return layer


def of_equal_lengths(scale):
    """Plain attention and normed tokens times ``scale``, for which all queries of a head have one length, and all
    keys."""
    source = rough(SelfAttention(DIM, HEADS, qkv_bias=True))
    source.qkv.bias.data[: 2 * DIM] = 0
    for part, size in zip(source.qkv.weight.data.chunk(3), (2.0, 0.7)):
        turns = [torch.linalg.qr(torch.randn(DIM // HEADS, DIM // HEADS).double()).Q for _ in range(HEADS)]
        part.copy_(size * torch.block_diag(*turns))
    x = torch.randn(2, SIDE, SIDE, HEADS, DIM // HEADS).double()
    return source, scale * F.layer_norm(x, x.shape[-1:], eps=0).flatten(3)


@pytest.mark.parametrize('scale', [1.0, 1.5])
def test_cosine_starts_as_plain(scale):
    """Where all queries and keys have the lengths that the start takes them to have, attention is that of the source,
    also after a norm with a weight."""
    source, x = of_equal_lengths(scale)
    layer = started(CosineAttention(DIM, HEADS, **AT_SIDE), with_prefix(source, weight=scale, bias=0.0))
    torch.testing.assert_close(layer(x), source(x), atol=1e-5, rtol=1e-5)


def test_pooled_tokens_start_as_plain():
    """Without neighbours, on a map that repeats each token r x r times, attention is that of the source. A token is
    counted r x r times there; here it is one key."""
    source, x = of_equal_lengths(1.0)
    x = x[:, : SIDE // 2, : SIDE // 2].repeat_interleave(2, 1).repeat_interleave(2, 2)
    layer = started(AggregatedAttention(DIM, HEADS, 2, kernel_size=1, **AT_SIDE), with_prefix(source))
    torch.testing.assert_close(layer.relative_pos_bias_local.exp(), torch.full((HEADS, 1), 0.25).double())
    layer.relative_pos_bias_local.data.fill_(-1e9)
    torch.testing.assert_close(layer(x), source(x), atol=1e-3, rtol=1e-3)


def test_pooled_tokens_start_as_pvt():
    """On a map that repeats each token r x r times, queries, keys and values are those of PVTv2, but for lengths."""
    source = rough(SpatialReductionAttention(DIM, HEADS, 2))
    layer = started(AggregatedAttention(DIM, HEADS, 2, **AT_SIDE), with_prefix(source, weight=1.3, bias=0.2), HEADS)
    x = 1.3 * F.layer_norm(torch.randn(2, 3, 2, DIM).double(), (DIM,)) + 0.2
    x = x.repeat_interleave(2, 1).repeat_interleave(2, 2)
    query, key, value = (each.unflatten(-1, (HEADS, -1)) for each in source.query_key_value(x))
    own, _, _, pooled_key, pooled_value = layer.query_key_value(x)
    torch.testing.assert_close(own, F.normalize(query, dim=-1))
    torch.testing.assert_close(pooled_key, F.normalize(key, dim=-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(pooled_value, value, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(layer.proj.weight, source.proj.weight)


@pytest.mark.parametrize('kind', ['plain', 'pvt'])
def test_the_temperature_is_the_mean_length(kind):
    """Of products, over many tokens that the two norms make: of the block for queries, of PVTv2's merging for keys."""
    near = dict(weight=1.3, bias=0.2)
    if kind == 'pvt':
        source = rough(SpatialReductionAttention(DIM, HEADS, 2))
        source.norm.weight.data[:], source.norm.bias.data[:] = 0.6, -0.4
        layer, far = (
            started(AggregatedAttention(DIM, HEADS, 2, **AT_SIDE), with_prefix(source, **near), HEADS),
            (0.6, -0.4),
        )
        query, key = source.q, lambda x: source.kv(x)[..., :DIM]
    else:
        source, far = rough(SelfAttention(DIM, HEADS)), tuple(near.values())
        layer = started(AggregatedAttention(DIM, HEADS, 2, **AT_SIDE), with_prefix(source, **near))
        query, key = (lambda x, i=i: source.qkv(x).chunk(3, -1)[i] for i in (0, 1))
    z = torch.randn(2, 20000, DIM).double()
    squares = [
        project(scale * x + offset).unflatten(-1, (HEADS, -1)).square().sum(-1).mean(0)
        for project, x, (scale, offset) in zip((query, key), z, (tuple(near.values()), far))
    ]
    expected = (squares[0] * squares[1] * HEADS / DIM).sqrt() / math.log(9 + (SIDE // 2) ** 2)
    torch.testing.assert_close(F.softplus(layer.temperature).flatten(), expected, atol=0, rtol=0.02)


@pytest.mark.parametrize('kind', [NeighbourhoodAttention, WindowAttention])
def test_neighbours_start_with_their_biases(kind):
    """Those of NAT's and Swin's tables, which count in other directions, relative to the mean of the table."""
    settings = dict(kernel_size=5) if kind is NeighbourhoodAttention else dict(window_size=3)
    source = rough(kind(DIM, HEADS, **settings))
    layer = started(AggregatedAttention(DIM, HEADS, 2), with_prefix(source))
    if kind is NeighbourhoodAttention:
        table = source.rpb
    else:
        table = source.relative_position_bias_table.t().unflatten(1, (5, 5)).flip(1, 2)
    half = table.shape[1] // 2
    expected = table[:, half - 1 : half + 2, half - 1 : half + 2].flatten(1) - table.mean((1, 2))[:, None]
    torch.testing.assert_close(layer.relative_pos_bias_local, expected - math.log(4))
    name = 'rpb' if kind is NeighbourhoodAttention else 'relative_position_bias_table'
    with pytest.raises(CheckpointError, match=rf'of another shape: attn\.{name} \(24, 2\)'):
        layer.warm_start(with_prefix(source) | {f'attn.{name}': torch.zeros(24, 2)}, 'attn.')


def test_shunted_as_pvt(monkeypatch):
    """Groups that merge alike are one attention of PVTv2, but for the GELU and the convolution of the values."""
    monkeypatch.setattr(mmattn.layers.shunted, 'F', SimpleNamespace(**{**vars(F), 'gelu': lambda x: x}))
    source = rough(ShuntedAttention(DIM, 4, [2, 2]))
    for i in (1, 2):
        for tensor in getattr(source, f'local_conv{i}').parameters():
            nn.init.zeros_(tensor)
    for name in ('sr', 'norm'):
        getattr(source, f'{name}2').load_state_dict(getattr(source, f'{name}1').state_dict())
    weights = {f'a.{name}': value for name, value in source.state_dict().items()}
    pvt_of_shunted(weights, 'a.', DIM)
    weights |= {f'a.norm.{kind}': value for kind, value in source.norm1.state_dict().items()}
    pvt = SpatialReductionAttention(DIM, 4, 2).double()
    pvt.load_state_dict({name: weights[f'a.{name}'] for name in pvt.state_dict()})
    x = torch.randn(2, 4, 6, DIM).double()
    torch.testing.assert_close(pvt(x), source(x))


def test_the_line_of_a_gelu():
    """The norm of PVTv2's attention is Shunted's and the best line through the GELU that follows it."""
    source = rough(ShuntedAttention(DIM, HEADS, [2]))
    weights = {f'a.{name}': value for name, value in source.state_dict().items()}
    pvt_of_shunted(weights, 'a.', DIM)
    z = torch.randn(100000, DIM).double()
    made = F.gelu(source.norm1.weight * z + source.norm1.bias)
    slope = ((made - made.mean(0)) * z).mean(0)
    torch.testing.assert_close(weights['a.norm.weight'], slope, atol=0.01, rtol=0)
    torch.testing.assert_close(weights['a.norm.bias'], made.mean(0), atol=0.01, rtol=0)
