import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import nn

from mmattn.backbones import ShuntedTransformer
from mmattn.layers import TOKEN_MIXERS, ShuntedAttention
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
        ('shunted-s_fpn_8xb2-80k_ade20k-512x512', dict),
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


@TOKEN_MIXERS.register_module(name='LocalEnhanced', force=True)
class OwnTokenMixer(nn.Conv2d):
    def __init__(self, dim, stride):
        super().__init__(dim, dim, 1)
        self.map_stride = stride

    def forward(self, x):
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def test_token_mixers_get_what_they_need():
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
        (dict(reductions=(8, 4, 2)), 'of one length'),
        (dict(mlp_ratios=(8, 8, 4, 0)), r'mlp_ratios\[3\] must make at least 1 of 512 channels, not 0'),
        (dict(stem_convs=-1), 'stem_convs'),
        (dict(norm_cfg=dict(type='LN')), "norm_cfg .* not {'type': 'LN'}"),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ShuntedTransformer(**wrong)
