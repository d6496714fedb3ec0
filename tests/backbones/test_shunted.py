import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from torch import nn

from mmattn.analysis.complexity import classifier, count_operations, count_parameters
from mmattn.backbones import ShuntedTransformer
from mmattn.layers import MECHANISMS, EnhancedAttention, ShuntedAttention
from mmattn.weights import CheckpointError
from tests import ROOT

SMALL = dict(
    arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 1), num_heads=(2, 2, 4, 4), stem_convs=1),
    mlp_ratios=(2, 2, 2, 2),
)


def test_computes_what_the_release_computes(golden):
    """All four maps and, through a head, the logits, at sizes that the release supports."""
    data = golden('shunted')
    c = data['config']
    backbone = ShuntedTransformer(
        arch=dict(embed_dims=c['embed_dims'], depths=c['depths'], num_heads=c['num_heads'], stem_convs=c['num_conv']),
        mlp_ratios=c['mlp_ratios'],
        reductions=c['sr_ratios'],
    ).eval()
    backbone.load_state_dict(data['state_dict'])
    for x, outputs in zip(data['inputs'], data['outputs'], strict=True):
        with torch.no_grad():
            maps = backbone(x)
            logits = F.linear(maps[-1].mean((2, 3)), data['state_dict']['head.weight'], data['state_dict']['head.bias'])
        for out, expected in zip((*maps, logits), outputs, strict=True):
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    'arch, layout', [('tiny', 'shunted_t_imagenet'), ('small', 'shunted_s_imagenet'), ('base', 'shunted_b_imagenet')]
)
def test_released_layouts(release, arch, layout):
    """Each release fills all tensors of its variant; only the classifier is left out."""
    state_dict = release(layout)
    with torch.device('meta'):
        backbone = ShuntedTransformer(arch=arch)
    backbone.to_empty(device='cpu').load_state_dict(state_dict, strict=True)
    own, translation = backbone.state_dict(), backbone.from_release(state_dict)
    assert set(translation.dropped) == {'head.weight', 'head.bias'}
    assert all(torch.equal(value, translation.tensors[name].to(value.dtype)) for name, value in own.items())


@pytest.mark.parametrize(
    'config, wrap',
    [
        ('mask-rcnn_shunted-s_fpn_1x_coco', lambda weights: {'model': weights, 'epoch': 300}),
        ('mask-rcnn_shunted-s_fpn_1x_coco', dict),
        ('shunted-s_fpn_8xb2-80k_ade20k-512x512', dict),
        *(
            pytest.param(config, dict, marks=pytest.mark.slow)
            for config in (
                'retinanet_shunted-s_fpn_1x_coco',
                'shunted-s_upernet_8xb2-160k_ade20k-512x512',
                'shunted-s_segformer_8xb2-160k_ade20k-512x512',
            )
        ),
    ],
)
def test_releases_load_under_every_head(tmp_path, release, config, wrap):
    """The backbone of each of the paper's configs takes ckpt_S.pth by its path, bare or under "model"."""
    weights = release('shunted_s_imagenet')
    torch.save(wrap(weights), tmp_path / 'ckpt_S.pth')
    settings = dict(Config.fromfile(ROOT / 'configs' / 'shunted' / f'{config}.py').model.backbone)
    assert settings['init_cfg']['checkpoint'] == 'checkpoints/ckpt_S.pth'
    settings['init_cfg'] = dict(type='Pretrained', checkpoint=str(tmp_path / 'ckpt_S.pth'))
    assert settings.pop('type') == 'ShuntedTransformer'
    backbone = ShuntedTransformer(**settings)
    backbone.init_weights()
    assert torch.equal(backbone.block3[11].mlp.dwconv.weight, weights['block3.11.mlp.dwconv.dwconv.weight'])
    assert torch.equal(backbone.norm4.bias, weights['norm4.bias'])


@pytest.mark.parametrize(
    'layout, arch, guess',
    [('shunted_t_imagenet', 'small', r"arch='tiny'"), ('shunted_b_imagenet', 'tiny', r"arch='base'")],
)
def test_wrong_arch_is_guessed(release, layout, arch, guess):
    """The variants share most names and shapes. The error for a wrong one says which it is."""
    with pytest.raises(CheckpointError, match=guess):
        ShuntedTransformer(arch=arch).load_state_dict(release(layout))


def test_stages_not_built_are_left_out_of_a_release(release):
    """A backbone with fewer stages loads a whole release. A missing tensor of its stages is still an error."""
    weights = release('shunted_t_imagenet')
    part = ShuntedTransformer(arch='tiny', out_indices=(1,))
    part.load_state_dict(weights)
    assert torch.equal(part.norm1.weight, weights['norm1.weight'])
    del weights['norm1.weight']
    with pytest.raises(CheckpointError, match='1 missing: norm1.weight'):
        part.load_state_dict(weights)


def test_every_pixel_matters_in_every_stage():
    """The first token of each map depends on every pixel, also on an odd last row and column."""
    backbone = ShuntedTransformer(**SMALL).eval().double()
    x = torch.randn(1, 3, 37, 61, dtype=torch.float64, requires_grad=True)
    for out in backbone(x):
        (grad,) = torch.autograd.grad(out[0, :3, 0, 0].sum(), x, retain_graph=True)
        assert (grad.abs().sum(1) > 0).all()


def test_stem_merges_the_last_odd_row_and_column():
    """In the stem, the last row and column of 34 / 2 = 17 tokens are merged alone."""
    stem = ShuntedTransformer(**SMALL).patch_embed1.eval()
    x = torch.randn(1, 34, 34, 3)
    before, x[:, :, -1] = stem(x), 0.0
    changed = (before - stem(x)).abs().sum((0, 3)) > 0
    assert before.shape[1:3] == (9, 9) and changed[:, -1].all() and not changed[:, :-3].any()


def test_convolutions_start_by_the_fan_out_of_a_group():
    """A depth-wise 3 x 3 filter starts with a deviation of sqrt(2 / 9), as in the released code, and not with one that
    counts all groups."""
    backbone = ShuntedTransformer(arch='tiny')
    backbone.init_weights()
    for conv in (backbone.block3[0].mlp.dwconv, backbone.block4[0].attn.local_conv):
        assert float(conv.weight.detach().std()) == pytest.approx((2 / 9) ** 0.5, rel=0.1)


@pytest.mark.parametrize('norm_type, cls', [('BN', nn.BatchNorm2d), ('SyncBN', nn.SyncBatchNorm)])
def test_stem_norm_follows_norm_cfg(norm_type, cls):
    """Norms of the stem have the type of norm_cfg, and update their statistics in training unless norm_eval is set."""
    for settings, learns in ((dict(), True), (dict(norm_eval=True), False), (dict(frozen_stages=0), False)):
        backbone = ShuntedTransformer(**SMALL, norm_cfg=dict(type=norm_type), **settings).train()
        norms = [m for m in backbone.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        assert [type(m) for m in norms] == [cls, cls]
        before = [m.running_mean.clone() for m in norms]
        maps = backbone(torch.randn(2, 3, 32, 32))
        assert all(torch.equal(m.running_mean, b) != learns for m, b in zip(norms, before))
        assert maps[-1].requires_grad and backbone.block4[0].training


def test_settings_reach_the_layers():
    """Every argument reaches its layer."""
    backbone = ShuntedTransformer(
        arch='tiny',
        reductions=(16, 4, 1, 1),
        mlp_ratios=(1, 2, 3, 4),
        stem_convs=3,
        norm_cfg=dict(type='BN', momentum=0.2),
        drop_rate=0.1,
        attn_drop_rate=0.2,
        drop_path_rate=0.3,
        in_channels=1,
    )
    first, last = backbone.block1[0], backbone.block4[0]
    assert isinstance(first.attn, ShuntedAttention) and isinstance(backbone.block3[0].attn, EnhancedAttention)
    assert (first.attn.sr1.stride, first.attn.sr2.stride) == ((16, 16), (8, 8))
    assert [getattr(backbone, f'block{i}')[0].mlp.fc1.out_features for i in (1, 2, 3, 4)] == [64, 256, 768, 2048]
    convs = [m for m in backbone.patch_embed1.modules() if isinstance(m, nn.Conv2d)]
    assert [c.kernel_size[0] for c in convs] == [7, 3, 3, 3, 2] and convs[0].in_channels == 1
    assert backbone.patch_embed1.conv[1].momentum == 0.2
    assert first.mlp.drop1.p == first.attn.drop.p == last.attn.drop.p == 0.1
    assert first.attn.attn_drop_rate == last.attn.attn_drop_rate == 0.2
    assert first.drop_path.drop_prob == 0 and last.drop_path.drop_prob == pytest.approx(0.3)


@pytest.mark.slow  # tests/analysis/test_complexity.py counts the rows of the configs
@pytest.mark.parametrize(
    'settings, parameters, operations',
    [
        (dict(stem='patches'), 22.34, 4.37),
        (dict(stem_convs=0), 22.36, 4.53),
        (dict(), 22.40, 4.99),
        (dict(aggregation='convolution'), 22.36, 4.99),
        (dict(aggregation='linear'), 18.22, 4.74),
        (dict(feed_forward='plain'), 22.21, 4.91),
        (dict(feed_forward='conv'), 22.40, 4.99),
    ],
)
def test_sizes_of_tables_7_to_9(settings, parameters, operations):
    """Shunted-S in millions of parameters and 10^9 multiply-adds at 224 x 224."""
    model = classifier(ConfigDict(type='ShuntedTransformer', arch='small', **settings), 1000)
    image = torch.empty(1, 3, 224, 224, device='meta')
    counted = count_operations(lambda: model['head'](model['backbone'](image)[-1].mean((2, 3))))
    assert (round(count_parameters(model) / 1e6, 2), round(counted / 1e9, 2)) == (parameters, operations)


VARIANTS = [
    dict(stem='patches'),
    dict(aggregation='convolution'),
    dict(aggregation='linear'),
    dict(feed_forward='plain'),
    dict(feed_forward='conv'),
    dict(reductions=([4, 2], [3], [1, 2, 5, 1], [2, 1])),
    dict(attention=dict(type='ShuntedAttention')),
    dict(attention=[None, dict(type='WindowAttention', window_size=4), dict(type='ELSA'), dict(type='LocalEnhanced')]),
]


@MECHANISMS.register_module(name='LocalEnhanced', force=True)
class OwnMechanism(nn.Conv2d):
    def __init__(self, dim, stride):
        super().__init__(dim, dim, 1)
        self.map_stride = stride

    def forward(self, x):
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@pytest.mark.parametrize('settings', VARIANTS, ids=str)
def test_variants(settings, tmp_path):
    """Each form takes maps of odd sides and trains all its weights. Its checkpoint fits it, and not the default."""
    backbone = ShuntedTransformer(**SMALL, **settings)
    maps = backbone(torch.randn(2, 3, 37, 61))
    assert [tuple(out.shape[2:]) for out in maps] == [(10, 16), (5, 8), (3, 4), (2, 2)]
    sum(out.square().sum() for out in maps).backward()
    assert all(p.grad is not None for p in backbone.parameters())
    path = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=backbone.state_dict(), meta=dict(mmattn={'': backbone.settings_note})), path)
    ShuntedTransformer(**SMALL, **settings).load_pretrained(path)
    with pytest.raises(CheckpointError):
        ShuntedTransformer(**SMALL).load_pretrained(path)


def test_rates_of_a_linear_layer_are_settings(tmp_path):
    """Its tensors do not show the rate."""
    one, other = (dict(SMALL, aggregation='linear', reductions=(r, 2, 2, 1)) for r in (2, 4))
    backbone = ShuntedTransformer(**one)
    path = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=backbone.state_dict(), meta=dict(mmattn={'': backbone.settings_note})), path)
    with pytest.raises(CheckpointError, match='reduction'):
        ShuntedTransformer(**other).load_pretrained(path)


def test_numbers_of_heads_are_compared(tmp_path):
    """Each of them, not only how many there are: no tensor shows them."""
    backbone = ShuntedTransformer(**SMALL)
    path = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=backbone.state_dict(), meta=dict(mmattn={'': backbone.settings_note})), path)
    other = dict(SMALL, arch={**SMALL['arch'], 'num_heads': (2, 4, 4, 4)})
    with pytest.raises(CheckpointError, match=r'num_heads=\[2, 2, 4, 4\] instead of \[2, 4, 4, 4\]'):
        ShuntedTransformer(**other).load_pretrained(path)


def test_mechanisms_get_what_they_need():
    """Windows of every second block are shifted; the stride of the map and the rates of the stage reach the layer."""
    arch = {**SMALL['arch'], 'depths': (2, 2, 1, 1)}
    attention = [dict(type='WindowAttention', window_size=4), None, dict(type='LocalEnhanced'), None]
    backbone = ShuntedTransformer(**{**SMALL, 'arch': arch}, attention=attention)
    assert [block.attn.shift for block in backbone.block1] == [0, 2]
    assert backbone.block3[0].attn.map_stride == 16
    assert isinstance(backbone.block2[1].attn, ShuntedAttention)
    assert backbone.settings['attention[0]'] == 'WindowAttention'


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(stem='convolutions'), "stem must be one of overlap, patches, convolution, not 'convolutions'"),
        (dict(aggregation='mean'), 'aggregation must be one of shunted, convolution, linear'),
        (dict(feed_forward='mlp'), "feed_forward must be one of plain, conv, detail, not 'mlp'"),
        (dict(reductions=([8, 4, 2], 4, 2, 1)), 'num_heads must be a multiple of the 3 groups of reductions, not 2'),
        (dict(reductions=(8, 4, 3, 1)), 'reductions must be even'),
        (dict(reductions=(8, 4, 0, 1)), 'reductions'),
        (dict(reductions=(8, 4, 2)), 'of one length'),
        (dict(mlp_ratios=(8, 8)), 'mlp_ratios'),
        (dict(mlp_ratios=(8, 8, 4, 0)), r'mlp_ratios\[3\] must make at least 1 of 512 channels, not 0'),
        (dict(stem_convs=-1), 'stem_convs'),
        (dict(norm_cfg=dict(type='LN')), "norm_cfg .* not {'type': 'LN'}"),
        (dict(drop_rate=1.0), 'drop_rate'),
        (dict(attn_drop_rate=-0.1), 'attn_drop_rate'),
        (
            dict(arch={**SMALL['arch'], 'num_heads': (1, 2, 4, 4)}),
            'num_heads must be a multiple of the 2 groups of reductions, not 1',
        ),
        (dict(arch={**SMALL['arch'], 'num_heads': (3, 2, 4, 4)}), 'num_heads 3 does not divide the 8'),
        (
            dict(arch={**SMALL['arch'], 'depths': (1, 0, 1, 1)}),
            r'arch: depths\[1\] must be a whole number of at least 1, not 0',
        ),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ShuntedTransformer(**wrong)
