"""ShuntedTransformer with the weights of PVTv2 and of SegFormer's MiT."""

import itertools
import re
from types import SimpleNamespace

import mmdet.models
import mmseg.models
import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.pvt_v2 import PyramidVisionTransformerV2

import mmattn.layers.shunted
from mmattn.backbones import ShuntedTransformer
from mmattn.layers import ShuntedAttention, SpatialReductionAttention
from mmattn.weights import CheckpointError
from tests.backbones.test_swin import randomised
from tests.backbones.test_wrong_shapes import refused, wrong

SIZES = dict(embed_dims=(8, 16, 24, 32), depths=(2, 1, 1, 1), num_heads=(1, 2, 3, 4))
RATES = dict(reductions=(8, 4, 2, 1), mlp_ratios=(2, 2, 2, 2))


def shunted(**settings):
    attention = dict(type='SpatialReductionAttention')
    arch = dict(SIZES, stem_convs=0)
    return ShuntedTransformer(
        arch, **RATES, attention=attention, stem='convolution', **{'feed_forward': 'conv', **settings}
    ).eval()


def pvt_of_timm():
    settings = dict(depths=SIZES['depths'], embed_dims=SIZES['embed_dims'], num_heads=SIZES['num_heads'])
    return PyramidVisionTransformerV2(**settings, sr_ratios=(8, 4, 2, 1), mlp_ratios=(2, 2, 2, 2), num_classes=3)


def authors(weights):
    """timm's weights under the authors' names."""
    renamed = {}
    for name, value in weights.items():
        parts = name.replace('.mlp.dwconv.', '.mlp.dwconv.dwconv.').split('.')
        if parts[0] == 'stages':
            stage, part, *rest = int(parts[1]) + 1, *parts[2:]
            parts = [dict(blocks='block', norm='norm', downsample='patch_embed')[part] + str(stage), *rest]
        renamed['.'.join(parts).replace('patch_embed.', 'patch_embed1.')] = value
    return renamed


def authors_name(name):
    return next(iter(authors({name: None}))).replace('.dwconv.dwconv.', '.dwconv.')


def of_openmmlab(cls):
    """Each stage has as many heads of 8 channels as SIZES says."""
    ratios = dict(mlp_ratio=2) if cls is mmseg.models.MixVisionTransformer else dict(mlp_ratios=[2, 2, 2, 2])
    settings = dict(num_layers=list(SIZES['depths']), num_heads=list(SIZES['num_heads']), sr_ratios=[8, 4, 2, 1])
    return cls(embed_dims=8, **ratios, **settings)


@pytest.mark.parametrize('feed_forward', ['conv', 'detail'])
@pytest.mark.parametrize('size', [(64, 96), (75, 133)])
def test_pvt_of_timm(size, feed_forward):
    """All maps are those of timm's PVTv2, whose depth-wise filters minus the identity are Shunted's."""
    pvt = randomised(pvt_of_timm()).double()
    x = torch.rand(1, 3, *size, dtype=torch.float64)
    backbone = shunted(feed_forward=feed_forward).double()
    with torch.no_grad():
        expected = pvt.forward_intermediates(x, intermediates_only=True)
        for weights in (pvt.state_dict(), authors(pvt.state_dict())):
            backbone.load_state_dict(weights)
            for a, b in zip(backbone(x), expected, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize('package', ['mmdet', 'mmseg'])
def test_backbones_of_openmmlab(package):
    """All maps are those of MMDetection's PVTv2 and of MMSegmentation's MiT."""
    cls = mmdet.models.PyramidVisionTransformerV2 if package == 'mmdet' else mmseg.models.MixVisionTransformer
    pvt = randomised(of_openmmlab(cls))
    x = torch.rand(1, 3, 75, 133)
    backbone = shunted()
    backbone.load_state_dict(pvt.state_dict())
    with torch.no_grad():
        for a, b in zip(backbone(x), pvt(x), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_published_sizes():
    """PVTv2-b2's tensors, as timm has them, fill a ShuntedTransformer of its sizes."""
    with torch.device('meta'):
        weights = timm.create_model('pvt_v2_b2').state_dict()
    arch = dict(embed_dims=(64, 128, 320, 512), depths=(3, 4, 6, 3), num_heads=(1, 2, 5, 8), stem_convs=0)
    attention = dict(type='SpatialReductionAttention')
    backbone = ShuntedTransformer(arch, attention=attention, stem='convolution', feed_forward='conv')
    backbone.load_state_dict({name: torch.ones(value.shape) for name, value in weights.items()})
    assert all((value == 1).all() for value in backbone.state_dict().values())


@pytest.mark.parametrize('source', ['timm', 'mmdet'])
def test_wrong_shapes(source):
    """A tensor of another shape is refused, also where it is renamed or split."""
    pvt = pvt_of_timm() if source == 'timm' else of_openmmlab(mmdet.models.PyramidVisionTransformerV2)
    backbone, weights = shunted(feed_forward='detail'), pvt.state_dict()
    own = backbone.state_dict()
    assert not refused(own, backbone.from_release(weights))
    for name, given in itertools.islice(wrong(weights), 0, None, 4):
        try:
            passed = not refused(own, backbone.from_release(given))
        except CheckpointError:
            passed = False
        linear = '.ffn.layers.' in name and given[name].shape == weights[name].shape[:2]
        assert passed == (name.startswith('head.') or linear), name


def test_a_small_map():
    """A map smaller than the rate is padded: each map has its size, and gradients reach every pixel."""
    x = torch.rand(1, 3, 9, 5, requires_grad=True)
    maps = shunted()(x)
    assert [tuple(one.shape[2:]) for one in maps] == [(3, 2), (2, 1), (1, 1), (1, 1)]
    sum(one.sum() for one in maps).backward()
    assert (x.grad.abs().sum(1) > 0).all()


#: the heads of PVTv2 at its rates, and those that can be split over two rates
ONE_RATE = dict(reductions=([8], [4], [2], 1))
TWO_RATES = dict(reductions=(8, 4, 2, 1), num_heads=(2, 2, 6, 4))


def from_pvt(reductions, num_heads=SIZES['num_heads'], **settings):
    arch = dict(SIZES, num_heads=num_heads, stem_convs=0)
    settings = dict(dict(mlp_ratios=RATES['mlp_ratios'], stem='convolution'), **settings)
    return ShuntedTransformer(arch, reductions, **settings).eval()


@pytest.mark.parametrize(
    'build, bound',  # MMDetection has another eps in some norms
    [(pvt_of_timm, 1e-10), (lambda: of_openmmlab(mmdet.models.PyramidVisionTransformerV2), 1e-5)],
    ids=['timm', 'mmdet'],
)
@pytest.mark.parametrize('linear', [False, True])
def test_shunted_starts_as_pvt(build, bound, linear, monkeypatch):
    """With its heads and rates alone, all maps are PVTv2's; but for the GELU, which PVTv2 does not have, to the last
    digit."""
    pvt = randomised(build()).double()
    backbone = from_pvt(**ONE_RATE).double()
    backbone.load_state_dict(backbone._warm_started(pvt.state_dict()))
    x = torch.rand(1, 3, 64, 96, dtype=torch.float64)
    if linear:
        monkeypatch.setattr(mmattn.layers.shunted, 'F', SimpleNamespace(**{**vars(F), 'gelu': lambda x: x}))
    with torch.no_grad():
        expected = pvt.forward_intermediates(x, intermediates_only=True) if hasattr(pvt, 'stages') else pvt(x)
        for a, b in zip(backbone(x), expected, strict=True):
            assert (a - b).norm() < (bound if linear else 1e-3) * b.norm()


@pytest.mark.parametrize('rates', [[4], [4, 2], [4, 4, 2, 1]])
@pytest.mark.parametrize('heads', [1, 2, 4])
def test_heads_and_rates_are_split(rates, heads, monkeypatch):
    """Four heads compute what PVTv2's compute, at one rate or several, where both can: where a product of query and key
    has no larger rank than the new heads, and the map repeats itself in the windows of the smallest rate."""
    monkeypatch.setattr(mmattn.layers.shunted, 'F', SimpleNamespace(**{**vars(F), 'gelu': lambda x: x}))
    pvt = randomised(SpatialReductionAttention(16, heads, 4)).double()
    key = pvt.kv.weight.data[:16].view(heads, -1, 16)
    key[:, 4:] = key[:, :1]  # of rank 4
    x = torch.rand(1, 3, 5, 16, dtype=torch.float64)
    x = x.repeat_interleave(4, 1).repeat_interleave(4, 2) + torch.rand(rates[-1], rates[-1], 16).repeat(
        12 // rates[-1], 20 // rates[-1], 1
    )
    shunted = ShuntedAttention(16, 4, rates).double()
    weights = {f'a.{name}': value for name, value in pvt.state_dict().items()}
    shunted.load_state_dict(shunted.from_pvt(weights, 'a.', heads))
    assert not weights
    torch.testing.assert_close(shunted(x), pvt(x))


def test_the_log_says_how_far_shunted_is_from_pvt(tmp_path, log):
    """Of both rates, from the file itself. The last stage has attention to single tokens, which is PVTv2's."""
    torch.save(randomised(pvt_of_timm()).state_dict(), tmp_path / 'pvt.pth')
    from_pvt(**ONE_RATE).load_pretrained(tmp_path / 'pvt.pth', warm_start=True)
    from_pvt(**TWO_RATES).load_pretrained(tmp_path / 'pvt.pth', warm_start=True)
    one, two = (line for line in log if 'first pass' in line)
    assert 'differs from that of a Pyramid Vision Transformer by 0.' in one
    assert all(0 < float(share) < 90 for share in re.findall(r'([0-9.]+) %', two))
    kept = next(line for line in log if 'keep their initial values' in line)
    assert kept.endswith('nothing')


def test_ghost_heads_start_at_zero(tmp_path, log):
    """Shunted with ghost heads starts where it starts without them."""
    torch.save(randomised(pvt_of_timm()).state_dict(), tmp_path / 'pvt.pth')
    ghosts = [dict(type=kind, ghost_size=3) for kind in ['ShuntedAttention'] * 3 + ['EnhancedAttention']]
    for settings in (ONE_RATE, dict(ONE_RATE, attention=ghosts)):
        from_pvt(**settings).load_pretrained(tmp_path / 'pvt.pth', warm_start=True)
    without, with_ghosts = (line for line in log if 'first pass' in line)
    assert without == with_ghosts
    kept = [line for line in log if 'keep their initial values' in line][-1]
    assert 'block1.0.attn.ghost1.weight' in kept


OF_TRANSNEXT = [dict(type='AggregatedAttention')] * 3 + [dict(type='CosineAttention')]


@pytest.mark.parametrize('attention', [OF_TRANSNEXT, dict(type='RankAugmentedAttention', local_size=5)], ids=str)
def test_other_attention_starts_from_pvt(attention, tmp_path, log):
    """All tensors of PVTv2 are taken that have a meaning there; the log says how far the maps are. A tensor of another
    shape is refused."""
    pvt = randomised(pvt_of_timm()).state_dict()
    torch.save(pvt, tmp_path / 'pvt.pth')
    backbone = from_pvt(**RATES, attention=attention)
    backbone.load_pretrained(tmp_path / 'pvt.pth', warm_start=True)
    shares = re.findall(r'([0-9.]+) %', next(line for line in log if 'first pass differs' in line))
    assert len(shares) == 4 and all(0 < float(share) < 200 for share in shares)
    kept, left = (next(line for line in log if part in line) for part in ('keep their initial values', 'left out: '))
    assert set(re.findall(r'\.attn\.(\w+)', kept)) == ({'cpb_fc1'} if attention is OF_TRANSNEXT else set())
    assert set(re.findall(r'\.attn\.(\w+)', left)) == (set() if attention is OF_TRANSNEXT else {'sr', 'norm'})
    dropped, own = backbone.from_release(pvt, warm_start=True).dropped, backbone.state_dict()
    for name, given in itertools.islice(wrong(pvt), 0, None, 4):
        try:
            passed = not refused(own, backbone.from_release(given, warm_start=True))
        except CheckpointError:
            passed = False
        assert passed == (name in dropped or name.startswith('head.') or authors_name(name) in dropped), name


@pytest.mark.parametrize(
    'settings, message',
    [
        (dict(TWO_RATES, num_heads=(2, 2, 4, 4)), r'have 3 heads in block3.0.attn, .* a multiple of that, not 4'),
        (dict(ONE_RATE, reductions=([8], [3], [2], 1)), r'block2.0.attn.sr.weight merges 4 x 4 .* rates \[3\]'),
        (dict(ONE_RATE, stem='overlap'), 'lack .patch_embed1.conv'),
        (dict(ONE_RATE, feed_forward='plain'), r'does not know .*block1.0.mlp.dwconv'),
        (dict(reductions=([8], [4], [2], [2])), "lack 'block4.0.attn.sr.weight'"),
    ],
)
def test_no_start_from_pvt(settings, message):
    """What does not go together is named."""
    with pytest.raises(CheckpointError, match=message):
        from_pvt(**settings)._warm_started(pvt_of_timm().state_dict())
