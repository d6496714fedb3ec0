import itertools
import re

import pytest
import torch
import torch.nn.functional as F

from mmattn.backbones import ShuntedTransformer
from mmattn.weights import CheckpointError
from tests.backbones.test_swin import randomised
from tests.backbones.test_wrong_shapes import refused, wrong

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


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(stem='convolutions'), "stem must be one of overlap, patches, convolution, not 'convolutions'"),
        (dict(feed_forward='mlp'), 'feed_forward'),
        (dict(reductions=([8, 4, 2], 4, 2, 1)), 'num_heads must be a multiple of the 3 groups of reductions, not 2'),
        (dict(reductions=(8, 4, 2)), 'of one length'),
        (dict(mlp_ratios=(8, 8, 4, 0)), r'mlp_ratios\[3\] must make at least 1 of 512 channels, not 0'),
        (dict(stem_convs=-1), 'stem_convs'),
    ],
)
def test_impossible_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        ShuntedTransformer(**wrong)


def test_other_attention_starts_from_shunted(tmp_path, log):
    """A stage with shunted attention keeps its tensors, and the log says how far the maps are. A tensor of another
    shape is refused."""
    settings = dict(SMALL, stem_convs=0)
    source = randomised(ShuntedTransformer(**settings))
    torch.save(source.state_dict(), tmp_path / 'shunted.pth')
    attention = [dict(type='AggregatedAttention'), None, dict(type='AggregatedAttention'), dict(type='CosineAttention')]
    backbone = ShuntedTransformer(**settings, attention=attention)
    backbone.load_pretrained(tmp_path / 'shunted.pth', warm_start=True)
    own, given = backbone.block2.state_dict(), source.block2.state_dict()
    assert all(value.equal(given[name]) for name, value in own.items())
    line = next(line for line in log if 'first pass' in line)
    assert 'differs from that of a Shunted Transformer by ' in line
    assert all(0 < float(share) < 200 for share in re.findall(r'([0-9.]+) %', line))
    kept, left = (next(line for line in log if part in line) for part in ('keep their initial values', 'left out: '))
    assert set(re.findall(r'\.attn\.(\w+)', kept)) == {'cpb_fc1'}
    assert set(re.findall(r'\.attn\.(\w+)', left)) == {'sr2', 'norm2', 'local_conv1', 'local_conv2', 'local_conv'}
    weights = source.state_dict()
    for kind in ('weight', 'bias'):  # as the release has the last stage
        name = f'block4.0.attn.qkv.{kind}'
        released = {f'block4.0.attn.{part}.{kind}': x for part, x in zip(('q', 'kv'), weights[name].split((16, 32)))}
        weights = {key: x for key, x in weights.items() if key != name} | released
    for last in (None, attention[3]):
        other = ShuntedTransformer(**settings, attention=[*attention[:3], last])
        assert other._warm_started(weights)['block4.0.attn.qkv.weight'].equal(source.block4[0].attn.qkv.weight)
    weights, own = source.state_dict(), backbone.state_dict()
    dropped = backbone.from_release(weights, warm_start=True).dropped
    for name, given in itertools.islice(wrong(weights), 0, None, 4):
        try:
            passed = not refused(own, backbone.from_release(given, warm_start=True))
        except CheckpointError:
            passed = False
        assert passed == (name in dropped), name
