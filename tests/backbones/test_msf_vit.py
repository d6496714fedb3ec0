import pytest
import torch
import torch.nn.functional as F

from mmattn.backbones import MSFViT, ViTFrame
from mmattn.backbones.patch_embed import position_code
from mmattn.weights import CheckpointError
from mmguard.runs.resuming import whole_model_weights
from tests.backbones.test_vit import small_deit

FORMS = {'orig': dict(form='plain'), 'msf': dict(), 'msf-g2': dict(groups=2)}


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('backend', ['reference', 'channels', 'bias'])
def test_computes_what_the_release_computes(golden, name, backend):
    """The maps after every block and, through a head, the logits, by every backend."""
    data = golden(f'msf_vit_{name}')
    c, weights = data['config'], data['state_dict']
    backbone = MSFViT(
        arch=dict(embed_dim=c['dim'], depth=c['depth'], num_heads=c['heads']),
        patch_size=c['patch_size'],
        mlp_ratio=c['mlp_dim'] / c['dim'],
        out_indices=range(c['depth']),
        **FORMS[name],
    ).eval()
    backbone.load_state_dict(weights)
    if name != 'orig':  # plain attention has no operator of ours
        backbone.set_backend(backend)
    for x, outputs in zip(data['inputs'], data['outputs'], strict=True):
        with torch.no_grad():
            maps = backbone(x)
            pooled = F.layer_norm(
                maps[-1].mean((2, 3)), (c['dim'],), *(weights[f'linear_head.0.{kind}'] for kind in ('weight', 'bias'))
            )
            logits = F.linear(pooled, weights['linear_head.1.weight'], weights['linear_head.1.bias'])
        for out, expected in zip((*maps, logits), outputs, strict=True):
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize('name', FORMS)
def test_released_layouts(tmp_path, release, name):
    """Each layout, as torchvision's trainer saves it, fills its variant. Only the classifier is left out. The filled
    model takes images of any size."""
    weights = release(f'msf_vit_small_{name}_imagenet')
    torch.save({'model_ema': {f'module.{k}': v for k, v in weights.items()}, 'epoch': 99}, tmp_path / 'c.pth')
    backbone = MSFViT(arch='small', init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'c.pth')), **FORMS[name])
    backbone.init_weights()
    own, translation = backbone.state_dict(), backbone.from_release(weights)
    assert set(translation.dropped) == {f'linear_head.{i}.{kind}' for i in (0, 1) for kind in ('weight', 'bias')}
    assert all(torch.equal(value, translation.tensors[name]) for name, value in own.items())
    with torch.no_grad():
        assert backbone.eval()(torch.randn(1, 3, 97, 130))[0].shape == (1, 384, 7, 9)


def test_any_part_of_a_release_serves(release):
    """With fewer outputs, later blocks are left out. A final norm, which a release lacks, keeps its initial values."""
    weights = release('msf_vit_small_msf_imagenet')
    part = MSFViT(arch='small', out_indices=(1, 3), final_norm=True)
    part.load_state_dict(weights)
    assert torch.equal(part.blocks[3].attn.pre_proj.weight, weights['transformer.layers.3.0.to_qkvp.weight'])
    assert (part.norm.weight == 1).all() and len(part.blocks) == 4
    with pytest.raises(CheckpointError, match=r"those of MSFViT\(arch='small'\) with its default.*12 of another shape"):
        MSFViT(arch='small', form='plain').load_state_dict(weights)


DEIT = dict(arch=dict(embed_dim=24, depth=2, num_heads=2), patch_size=8)


@pytest.mark.parametrize(
    'settings', [dict(), dict(form='plain', proj_bias=True), dict(groups=2), dict(final_norm=True)], ids=str
)
def test_warm_start_from_timm(tmp_path, log, settings):
    """All usable tensors of timm's ViT are taken. The log names the others of both sides."""
    weights = small_deit().state_dict()
    torch.save(weights, tmp_path / 'vit.pth')
    backbone = MSFViT(**DEIT, **settings)
    fresh = {key: value.clone() for key, value in backbone.state_dict().items()}
    backbone.load_pretrained(tmp_path / 'vit.pth', warm_start=True)
    own = backbone.state_dict()
    taken, afresh, left = (
        set(next(line for line in log if f'warm start: {what}' in line).split(f'{what}: ')[1].split(', '))
        for what in ('taken', 'keep their initial values', 'left out')
    )
    assert taken | afresh == set(own) and not taken & afresh
    assert afresh == {f'patch_embed.{norm}.{kind}' for norm in ('patch_norm', 'norm') for kind in ('weight', 'bias')}
    assert all(torch.equal(own[key], fresh[key]) for key in afresh)
    assert {'cls_token', 'pos_embed', 'head.bias'} <= left
    assert ('blocks.0.attn.qkv.bias' in left) != ('proj_bias' in settings)
    assert ('norm.weight' in taken) == ('final_norm' in settings) != ('norm.weight' in left)
    assert torch.equal(own['blocks.1.mlp.fc2.weight'], weights['blocks.1.mlp.fc2.weight'])


def test_starts_from_a_classifier(tmp_path, log):
    """A checkpoint of a classifier that was trained here is taken strictly. It has no final norm, which keeps its
    initial values, and the log says so."""
    weights = {f'backbone.{name}': value for name, value in MSFViT(**DEIT).state_dict().items()}
    torch.save(dict(state_dict={**weights, 'head.norm.weight': torch.ones(24)}), tmp_path / 'epoch_100.pth')
    backbone = MSFViT(**DEIT, final_norm=True)
    backbone.load_pretrained(tmp_path / 'epoch_100.pth')
    assert 'MSFViT: start untrained: norm.weight, norm.bias' in log
    own = backbone.state_dict()
    assert all(torch.equal(own[name.removeprefix('backbone.')], value) for name, value in weights.items())


def test_warm_start_computes_what_the_plain_blocks_compute():
    """The plain form with biases computes what timm's block computes, and the Gaussian form nearly so. The mean-shift
    form starts as the Gaussian form, since its probe is zero. The patch embedding has timm's filters."""
    vit, x = small_deit(), torch.randn(2, 3, 5, 24)
    blocks = {}
    for form in ('plain', 'gauss', 'msf', 'residual'):
        backbone = MSFViT(**DEIT, form=form, proj_bias=True).eval()
        backbone.load_state_dict(
            {**backbone.state_dict(), **backbone.from_release(vit.state_dict(), warm_start=True).tensors}
        )
        blocks[form] = backbone.blocks[1]
    expected = vit.blocks[1](x.flatten(1, 2)).view(x.shape)
    torch.testing.assert_close(blocks['plain'](x), expected, atol=1e-3, rtol=1e-4)  # eps 1e-5, not 1e-6
    gauss = blocks['gauss'](x)
    assert 1e-4 < (gauss - expected).norm() / expected.norm() < 0.01
    for form in ('msf', 'residual'):
        torch.testing.assert_close(blocks[form](x), gauss)
    image = torch.randn(1, 3, 16, 24)
    embed = backbone.patch_embed
    embed.patch_norm = embed.norm = torch.nn.Identity()
    tokens = embed(image)
    tokens = tokens - position_code(*tokens.shape[1:])
    torch.testing.assert_close(tokens.permute(0, 3, 1, 2), vit.patch_embed.proj(image), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    'sharing, rows, factor',
    [
        ('QKVPW', 'qkv0', 8),
        ('QKVQW', 'qkv', 1),
        ('QKKPW', 'qk0', 1),
        ('QQVVW', 'qv', 1),
        ('QKVPP', 'qkvw', 8),
        ('QKVPQ', 'qkv0', 1),
        ('QQQQQ', 'q', 1),
    ],
)
def test_warm_start_of_shared_matrices(sharing, rows, factor):
    """A shared matrix starts as the first of query, key, value and weight among its users; an own probe is zero. Keys
    start smaller, and queries larger, if both have their own matrices."""
    vit = small_deit().state_dict()
    backbone = MSFViT(**DEIT, sharing=sharing)
    start = backbone.from_release(vit, warm_start=True).tensors
    q, k, v = vit['blocks.1.attn.qkv.weight'].chunk(3)
    parts = {
        'q': factor * q,
        'k': k / factor,
        'v': v,
        '0': torch.zeros_like(q),
        'w': vit['blocks.1.attn.proj.weight'].t(),
    }
    assert torch.equal(start['blocks.1.attn.pre_proj.weight'], torch.cat([parts[part] for part in rows]))


def test_position_code():
    """Sines and cosines of the column, then of the row, at frequencies from 1 to 1 / 10000."""
    code = position_code(4, 7, 12)
    frequencies = torch.tensor([1.0, 0.01, 0.0001])
    expected = torch.cat([(n * frequencies).sin() if s else (n * frequencies).cos() for n in (5, 2) for s in (1, 0)])
    torch.testing.assert_close(code[2, 5], expected)
    assert code.shape == (4, 7, 12)


def test_final_norm_is_of_the_last_output_only():
    settings = dict(arch=dict(embed_dim=8, depth=3, num_heads=2), out_indices=(0, 2))
    without, normed = MSFViT(**settings).eval(), MSFViT(**settings, final_norm=True).eval()
    normed.load_state_dict(without.state_dict(), strict=True)
    x = torch.randn(1, 3, 40, 48)
    for a, b, is_last in zip(without(x), normed(x), (False, True)):
        expected = F.layer_norm(a.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2) if is_last else a
        torch.testing.assert_close(b, expected)


@pytest.mark.parametrize('place', ['landmarks', 'attention.landmarks'])
def test_landmarks_take_exact_weights(tmp_path, log, place):
    """Weights that were trained exactly serve the form in linear time, and the other way round, and the log says so. So
    do whole models, but a training does not resume with others."""

    def build(**landmarks):
        arch = dict(embed_dim=8, depth=1, num_heads=2)
        if place == 'landmarks':
            return MSFViT(arch, **landmarks)
        return ViTFrame(arch, attention=dict(type='MeanShiftAttention', **landmarks))

    for trained, own in ((build(), build(landmarks=2)), (build(landmarks=2), build())):
        torch.save(dict(state_dict=trained.state_dict(), meta=dict(mmattn={'': trained.settings_note})), tmp_path / 'a')
        own.load_pretrained(tmp_path / 'a')
        assert own.blocks[0].attn.pre_proj.weight.equal(trained.blocks[0].attn.pre_proj.weight)
        assert any(f'trained with {place}=' in message for message in log)
        log.clear()
        model = torch.nn.Sequential(own)
        weights = {f'0.{name}': value for name, value in trained.state_dict().items()}
        whole = dict(state_dict=weights, meta=dict(mmattn={'0': trained.settings_note}))
        assert whole_model_weights(whole, model, 'a')
        assert any(f'trained with {place}=' in message for message in log)
        log.clear()
        with pytest.raises(CheckpointError, match=f'a: the weights were trained with {place}='):
            whole_model_weights(whole, model, 'a', resumes=True)
