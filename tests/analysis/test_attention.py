"""The weights that are read out, applied to a layer's values, give the layer's output."""

import math
from functools import partial
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.analysis.attention import READERS, by_channel, input_as_values, query_attention
from mmattn.analysis.features import blocks_of, feature_norms, projections, receptive_field
from mmattn.backbones import SwinFrame
from mmattn.errors import InputError
from mmattn.layers import (
    ELSA,
    AggregatedAttention,
    CosineAttention,
    DecoupledDynamicFilter,
    DepthwiseConv,
    DynamicDepthwiseConv,
    EnhancedAttention,
    GhostHeadAttention,
    GlobalSelfAttention,
    LocalAttention,
    MeanShiftAttention,
    MeanShiftWindowAttention,
    NeighbourhoodAttention,
    OutlookAttention,
    RankAugmentedAttention,
    SelfAttention,
    ShuntedAttention,
    SpatialReductionAttention,
    WindowAttention,
)
from mmattn.layers.mean_shift import COLUMNS
from tests.backbones.cases import CASES, every_backbone

DIM, HEADS = 8, 2
QUERIES = [(0, 0), (4, 6), (2, 3)]  # on a map of 5 x 7
QUERY_IDS = ['first', 'last', 'inner']


def rough(layer):
    """A layer in float64 with weights large enough to make attention uneven."""
    layer = layer.double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def tokens():
    return torch.randn(1, 5, 7, DIM, dtype=torch.float64)


def by_heads(weights, values):
    """The sum over the map of weights (heads, H, W) times values (H, W, heads * d) -> (heads * d)."""
    return torch.einsum('nhw,hwnd->nd', weights, values.unflatten(-1, (len(weights), -1))).flatten()


@pytest.mark.parametrize(('row', 'column'), QUERIES, ids=QUERY_IDS)
@pytest.mark.parametrize('dilation', [1, 2])
@pytest.mark.parametrize(('lam', 'gamma'), [(0, 0), (0, 1), (2, 0.5)])
def test_elsa(lam, gamma, dilation, row, column):
    layer = rough(ELSA(DIM, HEADS, kernel_size=3, dilation=dilation, group_width=2, lam=lam, gamma=gamma))
    x = tokens()
    with torch.no_grad():
        (weights,), border = READERS[ELSA](layer, x, row, column), dilation
        padded = F.pad(x, (0, 0, *[border] * 4))
        with input_as_values(layer, border):
            kernel = by_channel(layer.forward, padded, row + border, column + border)
        kernel = kernel[:, row : row + 2 * border + 1 : border, column : column + 2 * border + 1 : border]
        values = layer.pre_proj(x)[0, ..., -DIM:]
        aggregated = torch.zeros(DIM, dtype=torch.float64)
        for i in range(3):
            for j in range(3):
                y, z = row + dilation * (i - 1), column + dilation * (j - 1)
                if 0 <= y < 5 and 0 <= z < 7:
                    aggregated += kernel[:, i, j] * values[y, z]
                mean = kernel[:, i, j].view(HEADS, -1).mean(1)
                torch.testing.assert_close(weights.values[:, y - weights.top, z - weights.left], mean)
        torch.testing.assert_close(layer.post_proj(aggregated), layer(x)[0, row, column])
        torch.testing.assert_close(weights.values.sum((1, 2)), kernel.reshape(HEADS, -1).sum(1) / (DIM // HEADS))


def padded(x, weights):
    """A map with zeros at the bottom and the right, of the size of the weights."""
    return F.pad(x, (0, 0, 0, weights.values.shape[2] - x.shape[2], 0, weights.values.shape[1] - x.shape[1]))


def plain(layer, x, weights, *_):
    """Layers with timm's projections; padding of the map takes part."""
    return layer.proj(by_heads(weights.values, layer.qkv(padded(x, weights))[0, ..., -DIM:]))


def enhanced(layer, x, weights, *place):
    value = layer.qkv(x)[..., -DIM:]
    return layer.proj(by_heads(weights.values, value[0]) + layer.local_conv(value)[0][place])


def rank_augmented(layer, x, weights, *place):
    value = layer.qkv(x)[..., -DIM:]
    out = by_heads(weights.values, value[0]) + layer.local_conv(value)[0][place]
    return layer.proj(out * layer.phi(x)[0][place])


def mean_shift(layer, x, weights, *place):
    """Equations 1, 12 and 14 with given weights."""
    layer, x = getattr(layer, 'attn', layer), padded(x, weights)[0]
    projected = dict(zip(layer.matrices, layer.pre_proj(x).chunk(len(layer.matrices), -1)))
    out = by_heads(weights.values, projected[layer.sharing[2]])
    if layer.form == 'msf':
        out = out - projected[layer.sharing[3]][place]
    out = out @ layer._tied_weight().t() if layer.post_proj is None else layer.post_proj(out)
    return out - projected[layer.sharing[3]][place] if layer.form == 'residual' else out


def in_windows(layer, x, weights, *_):
    """Values first, as the ablations have them."""
    return layer.post_proj(by_heads(weights.values, layer.pre_proj(padded(x, weights))[0, ..., :DIM]))


def around(layer, x, weights, row, column):
    """Values of 3 x 3 neighbours, zero outside the map."""
    value = F.pad(layer.pre_proj(x)[0, ..., :DIM], (0, 0, 1, 1, 1, 1))
    top, left = weights.top + 1, weights.left + 1
    out = by_heads(weights.values, value[top:, left:][: weights.values.shape[1], : weights.values.shape[2]])
    out = out + (layer.conv.bias if isinstance(layer, DepthwiseConv) else getattr(layer, 'bias', 0))
    return layer.post_proj(out)


def reduced(layer, x, weights, *_):
    values = layer.query_key_value(x)[2][0]
    assert weights.cell == layer.reduction and weights.values.shape[1:] == values.shape[:2]
    return layer.proj(by_heads(weights.values, values))


WINDOW = dict(window_size=4, kernel_size=3)
#: a layer, and its result from the weights and its own values
LAYERS = {
    'window': (lambda: WindowAttention(DIM, HEADS, window_size=4), plain),
    'shifted-window': (lambda: WindowAttention(DIM, HEADS, window_size=4, shift=1), plain),
    'plain': (lambda: SelfAttention(DIM, HEADS), plain),
    'cosine': (lambda: CosineAttention(DIM, HEADS), plain),
    'neighbourhood': (lambda: NeighbourhoodAttention(DIM, HEADS, kernel_size=3), plain),
    'neighbourhood-small-map': (lambda: NeighbourhoodAttention(DIM, HEADS, kernel_size=3, dilation=3), plain),
    'neighbourhood-ghost': (lambda: NeighbourhoodAttention(DIM, HEADS, kernel_size=3, dilation=3, ghost_size=3), plain),
    'rank-augmented': (lambda: RankAugmentedAttention(DIM, HEADS, rope=100.0, local_size=3), rank_augmented),
    'enhanced': (lambda: EnhancedAttention(DIM, HEADS), enhanced),
    'outlook': (
        lambda: OutlookAttention(DIM, HEADS),
        lambda layer, x, weights, *_: layer.proj(by_heads(weights.values, layer.v(x)[0])),
    ),
    **{
        f'{form}-window': (partial(MeanShiftWindowAttention, DIM, HEADS, window_size=4, shift=1, form=form), mean_shift)
        for form in COLUMNS
    },
    **{form: (partial(MeanShiftAttention, DIM, HEADS, form=form), mean_shift) for form in COLUMNS if form != 'plain'},
    'msf-plain': (lambda: MeanShiftAttention(DIM, HEADS, form='plain'), mean_shift),
    'msf-shared': (lambda: MeanShiftAttention(DIM, HEADS, sharing='QKKQW', groups=2), mean_shift),
    'msf-tied': (lambda: MeanShiftAttention(DIM, HEADS, sharing='QKKQQ'), mean_shift),
    **{
        f'ghost-head-{name}': (
            partial(GhostHeadAttention, DIM, HEADS, **settings),
            lambda layer, x, w, *_: layer.post_proj(by_heads(w.values, layer.pre_proj(x)[0, ..., -DIM:])),
        )
        for name, settings in dict(both={}, add=dict(multiple=1, lam=0), mul=dict(gamma=0, img_size=64)).items()
    },
    **{
        f'local-{norm}-{"-".join(terms)}-{name}': (
            partial(LocalAttention, DIM, HEADS, terms=terms, norm=norm, **WINDOW, **area),
            around if 'area' in area else in_windows,
        )
        for name, area in dict(window={}, shifted=dict(shift=1), neighbours=dict(area='neighbours')).items()
        for norm, terms in (('softmax', ['qk', 'b']), ('filter', ['qk', 'qr', 'rk', 'b']), ('identity', ['qr']))
    },
    'reduced': (lambda: SpatialReductionAttention(DIM, HEADS, 2), reduced),
    'not-reduced': (lambda: SpatialReductionAttention(DIM, HEADS, 1), reduced),
    'filters': (lambda: DepthwiseConv(DIM, kernel_size=3), around),
    'shared-filters': (lambda: DepthwiseConv(DIM, kernel_size=3, filters=2), around),
    'dynamic-filters': (lambda: DynamicDepthwiseConv(DIM, kernel_size=3), around),
    'decoupled-filters': (lambda: DecoupledDynamicFilter(DIM, kernel_size=3), around),
    'decoupled-sum': (lambda: DecoupledDynamicFilter(DIM, kernel_size=3, combination='sum'), around),
}


@torch.no_grad()
@pytest.mark.parametrize('name', LAYERS)
def test_weights_of_one_part(name):
    """Padding of windows and of small maps takes part; a shifted window keeps to its own part of the map; a ghost
    summand that is the same in all channels is part of the weights; neighbours are only where they are."""
    build, result = LAYERS[name]
    layer, x = rough(build()), tokens()
    if name == 'neighbourhood-ghost':
        layer.ghost.weight[:] = torch.randn(3, 3)
    if name == 'msf-tied':
        layer.steps, layer.landmarks = 2, 2
    for place in QUERIES:
        (weights,) = READERS[type(layer)](layer, x, *place)
        torch.testing.assert_close(result(layer, x, weights, *place), layer(x)[0][place])
        if name in ('window', 'shifted-window', 'msf-window', 'msf', 'enhanced', 'neighbourhood'):
            torch.testing.assert_close(weights.values.sum((1, 2)), torch.ones(HEADS).double())
        most = {'neighbourhood': 9, 'shifted-window': 16}.get(name, 9 if 'neighbours' in name else math.inf)
        assert (weights.values[0].abs() > 1e-30).sum() <= most


@torch.no_grad()
@pytest.mark.parametrize(('row', 'column'), QUERIES, ids=QUERY_IDS)
def test_aggregated(row, column):
    """Neighbours and pooled tokens have weights, which give the output together. Those of the softmax sum to 1."""
    layer, x = rough(AggregatedAttention(DIM, HEADS, 2)), tokens()
    value, pooled = (layer.query_key_value(x)[i][0] for i in (2, 4))
    near, far = READERS[AggregatedAttention](layer, x, row, column)
    assert (near.part, far.part, near.cell, far.cell) == ('neighbours', 'pooled', 1, 2)
    assert (near.values[0] != 0).sum() <= 9 and far.values.shape == (HEADS, 2, 3)
    out = by_heads(near.values, value.flatten(2)) + by_heads(far.values, pooled.flatten(2))
    torch.testing.assert_close(layer.proj(out), layer(x)[0, row, column])
    layer.learnable_tokens.zero_()
    layer.learnable_bias.zero_()
    parts = READERS[AggregatedAttention](layer, x, row, column)
    torch.testing.assert_close(sum(part.values.sum((1, 2)) for part in parts), torch.ones(HEADS).double())


@pytest.mark.parametrize(('row', 'column'), QUERIES, ids=QUERY_IDS)
@pytest.mark.parametrize(
    ('reduction', 'aggregation', 'ghost_size', 'shapes'),
    [
        (4, 'shunted', 0, [((2, 2, 2), 4, 0), ((2, 3, 4), 2, 2)]),
        (4, 'shunted', 3, [((2, 2, 2), 4, 0), ((2, 3, 4), 2, 2)]),
        ([1], 'convolution', 0, [((4, 5, 7), 1, 0)]),
        ([1, 2, 3, 4], 'linear', 0, [((1, 5, 7), 1, 0), ((1, 3, 4), 2, 1), ((1, 2, 3), 3, 2), ((1, 2, 2), 4, 3)]),
    ],
)
def test_shunted(reduction, aggregation, ghost_size, shapes, row, column):
    """Each group of heads has merged tokens of its own size, and a ghost head that is the same in all channels."""
    layer = rough(ShuntedAttention(DIM, 4, reduction, aggregation=aggregation, ghost_size=ghost_size))
    x = tokens()
    with torch.no_grad():
        if ghost_size:
            for ghost in (layer.ghost1, layer.ghost2):
                ghost.weight[:] = torch.randn(3, 3)
        found = READERS[ShuntedAttention](layer, x, row, column)
        assert [(w.values.shape, w.cell, w.first_head) for w in found] == shapes
        for weights in found if not ghost_size else ():
            torch.testing.assert_close(weights.values.sum((1, 2)), torch.ones(len(weights.values)).double())
        out = [by_heads(w.values, value[0]) for w, (_, value) in zip(found, layer.keys_values(x))]
        torch.testing.assert_close(layer.proj(torch.cat(out)), layer(x)[0, row, column])


@pytest.mark.parametrize(('row', 'column'), QUERIES, ids=QUERY_IDS)
@pytest.mark.parametrize(
    'settings',
    [
        dict(rel_pos_length=3, beyond='stretch'),
        dict(rel_pos_length=3, beyond='mask', project=False),
        dict(rel_pos_length=9, softmax_queries=True),
        dict(rel_pos_length=3, column=False, row=False),
        dict(rel_pos_length=3, content=False, row=False),
        dict(rel_pos_length=9, content=False, column=False),
        dict(neighbourhood=3, axial_softmax=True),
        dict(rel_pos_length=3, content='axial'),
        dict(neighbourhood=3, content='axial', axial_softmax=True),
    ],
    ids=str,
)
@pytest.mark.every(4)
def test_global(settings, row, column):
    """Equation 8, on maps longer and shorter than the tables; rows take the result of the columns."""
    layer = rough(GlobalSelfAttention(DIM, HEADS, **settings))
    x = tokens()

    def weigh(part, values, row, column):
        (weights,) = [w for w in READERS[GlobalSelfAttention](layer, x, row, column) if w.part == part]
        _, h, w = weights.values.shape
        return by_heads(weights.values, values[weights.top :, weights.left :][:h, :w])

    def weigh_all(part, values):
        return torch.stack([torch.stack([weigh(part, values, i, j) for j in range(7)]) for i in range(5)])

    def normed(norm, values):
        return norm(values.permute(2, 0, 1)[None])[0].permute(1, 2, 0)

    with torch.no_grad():
        parts = [w.part for w in READERS[GlobalSelfAttention](layer, x, row, column)]
        value = layer.value(x)[0]
        out = weigh_all('column', value) if 'column' in parts else value
        out = normed(layer.bn, out) if layer.bn is not None else out
        out = weigh_all('row', out) if 'row' in parts else out
        if 'content' in parts:
            out = weigh_all('content', value) + (out if len(parts) > 1 else 0)
        if layer.proj is not None:
            out = layer.proj(normed(layer.norm, out)[None])[0]
        torch.testing.assert_close(out[row, column], layer(x)[0, row, column])


@pytest.mark.parametrize('package', ['mmdet', 'mmseg', 'mmpretrain'])
def test_swin_of_openmmlab(package):
    """Its attention, norms, similarity and receptive fields are those of SwinFrame with the same weights. Windows are
    shifted and padded; padding has a share that OpenMMLab's layers give to no position of the map."""
    arch = dict(embed_dim=8, depths=(2, 2), num_heads=(1, 2))
    other, own = swin_of(package, **arch), SwinFrame(arch, window_size=4, out_indices=(0, 1)).eval()
    own.load_state_dict(own.from_release(other.state_dict()).tensors)
    image = torch.randn(1, 3, 40, 56)
    for theirs, ours in zip(query_attention(other, image, 30, 21), query_attention(own, image, 30, 21)):
        assert theirs[:2] == ours[:2] and theirs[3:5] == ours[3:5]
        torch.testing.assert_close(theirs.weights[0].values, ours.weights[0].values)
    torch.testing.assert_close(feature_norms(other, image), feature_norms(own, image))
    for stage in (0, 1):
        (field, centre), (expected, other_centre) = (receptive_field(each, image, stage) for each in (other, own))
        torch.testing.assert_close(field, expected, rtol=1e-3, atol=1e-5)
        assert centre == other_centre
    matrices = [projections(blocks_of(each)[1][0].attn) for each in (other, own)]
    torch.testing.assert_close(*matrices)


def swin_of(package, embed_dim, depths, num_heads):
    """A Swin Transformer of a package with uneven attention."""
    arch = dict(embed_dims=embed_dim, depths=depths, num_heads=num_heads)
    arch = dict(arch=arch, pad_small_map=True) if package == 'mmpretrain' else dict(arch, strides=(4, 2))
    kind = import_module(f'{package}.models.backbones').SwinTransformer
    model = kind(**arch, window_size=4, out_indices=(0, 1))
    model.eval()  # returns nothing
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.mark.parametrize('kind', ['PyramidVisionTransformer', 'PyramidVisionTransformerV2', 'MixVisionTransformer'])
def test_reduced_of_openmmlab(kind):
    """Weights sum to 1, and give with the values of the merged tokens what the layer adds to its input."""
    package = 'mmseg' if kind.startswith('Mix') else 'mmdet'
    settings = dict(embed_dims=8, num_layers=(1, 2, 1, 1), num_heads=(1, 2, 1, 1), sr_ratios=(2, 1, 1, 1))
    model = getattr(import_module(f'{package}.models.backbones'), kind)(**settings)
    model.eval()  # returns nothing
    image, seen = torch.randn(1, 3, 64, 96), []
    layers = [unit.attn for stage in blocks_of(model) for unit in stage]
    for layer in layers:
        layer.register_forward_hook(lambda *given: seen.append(given), with_kwargs=True)
    found = query_attention(model, image, 30, 21)
    cells = [(one.stage, one.block, one.weights[0].cell) for one in found]
    assert cells == [(0, 0, 2), (1, 0, 1), (1, 1, 1), (2, 0, 1), (3, 0, 1)]
    for one, layer, (_, (x, sides), given, out) in zip(found, layers, seen):
        row, column = one.query
        keys = x.mT.unflatten(2, sides)
        if layer.sr_ratio > 1:
            keys = layer.norm(layer.sr(keys).flatten(2).mT).mT.unflatten(2, one.weights[0].values.shape[1:])
        weight, bias = (tensor.chunk(3)[2] for tensor in (layer.attn.in_proj_weight, layer.attn.in_proj_bias))
        values = F.linear(keys[0].permute(1, 2, 0), weight, bias)
        added = layer.attn.out_proj(by_heads(one.weights[0].values, values))
        at = row * sides[1] + column
        torch.testing.assert_close(given['identity'][0, at] + added, out[0, at], rtol=1e-4, atol=1e-5)
    assert feature_norms(model, image).shape == (6, 1)


@every_backbone
def test_backbones(case):
    """All attention layers are read, in the order of the forward pass, and nothing of the model changes."""
    backbone = case.build(case.small).eval()
    image = torch.randn(1, 3, 65, 97)
    with torch.no_grad():
        before = backbone(image)
        found = query_attention(backbone, image, 96.5, 0)
        after = backbone(image)
    layers = [unit.attn for stage in blocks_of(backbone) for unit in stage if getattr(unit, 'attn', None) is not None]
    assert [one.layer for one in found] == [type(layer).__name__ for layer in layers]
    for one in found:
        height, width = math.ceil(65 / one.stride), math.ceil(97 / one.stride)
        assert one.query == (0, width - 1)
        for weights in one.weights:
            _, h, w = weights.values.shape
            assert weights.values.isfinite().all()
            assert weights.top < height <= weights.top + h * weights.cell or weights.part or one.layer == 'ELSA'
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    assert not any(module._forward_pre_hooks for module in backbone.modules())


def test_reads_once():
    """A layer that is run again to be read is not read again."""
    layer = dict(type='LocalAttention', area='neighbours', kernel_size=3)
    arch = dict(embed_dim=8, depths=(1,), num_heads=(2,))
    backbone = SwinFrame(arch, layer, out_indices=(0,)).eval()
    (one,) = query_attention(backbone, torch.zeros(1, 3, 32, 32), 0, 0)
    assert one.weights[0].values.shape == (2, 10, 10)


def test_unknown_layers():
    """A user's own layer is left out; backbones that are not known are refused."""

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((1, 2), keepdim=True).expand_as(x)

    backbone = CASES['ELSASwin'].build(CASES['ELSASwin'].small).eval()
    blocks_of(backbone)[0][0].attn = Mean()
    first, second, *_ = query_attention(backbone, torch.zeros(1, 3, 32, 32), 0, 0)
    assert first.layer == 'Mean' and first.weights is None and second.weights
    with pytest.raises(InputError, match='only backbones of mmattn, and .* can be analysed, not Linear'):
        query_attention(nn.Linear(1, 1), torch.zeros(1, 3, 32, 32), 0, 0)
