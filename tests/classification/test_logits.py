"""Logits of whole classifiers are those of the released code, of timm and of torchvision, whose weights load strictly
as they are. Weights are random, and no tensor has its initial value."""

import pytest
import timm
import torch
import torchvision
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint
from torch import nn

pytest.importorskip('mmpretrain')

DEPTHS, HEADS = (1, 1, 2, 2), (1, 2, 4, 8)
SWIN = dict(arch=dict(embed_dim=16, depths=DEPTHS, num_heads=HEADS), out_indices=(3,), shift_small_maps=False)


def classifier(backbone, channels, num_classes=5, head='LinearClsHead'):
    import mmattn.classification  # noqa: F401

    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(
            dict(
                type='ImageClassifier',
                backbone=backbone,
                neck=dict(type='GlobalAveragePooling'),
                head=dict(type=head, num_classes=num_classes, in_channels=channels),
            )
        ).eval()


def loaded(model, weights, folder):
    torch.save(weights, folder / 'released.pth')
    load_checkpoint(model, str(folder / 'released.pth'), strict=True)
    return model


def randomise(model):
    """Weights that keep the maps of about one size, tables of biases that count, running statistics."""
    for name, value in model.state_dict().items():
        if name.endswith('running_var'):
            value.uniform_(0.5, 2)
        elif 'bias' in name or name.endswith('running_mean'):
            value.normal_(std=0.5)
        elif value.dim() == 1 and value.is_floating_point():
            value.uniform_(0.5, 1.5)
        elif value.is_floating_point():
            nn.init.normal_(value, std=value[0].numel() ** -0.5)
    return model.eval()


@torch.no_grad()
def assert_same(model, reference, sizes):
    for size in sizes:
        x = torch.randn(2, 3, *size)
        expected = reference(x)
        assert expected.std() > 0.1
        torch.testing.assert_close(model(x), expected, atol=2e-5, rtol=0)


def test_swin(tmp_path):
    """The plain form with biases, whose last map is one window at 224. A classifier that shifts it has other logits."""
    swin = randomise(timm.models.SwinTransformer(embed_dim=16, depths=DEPTHS, num_heads=HEADS, num_classes=5))
    plain = dict(SWIN, type='MSFSwin', form='plain', proj_bias=True)
    model, shifting = (classifier(each, 128) for each in (plain, dict(plain, shift_small_maps=True)))
    assert_same(loaded(model, {'model': swin.state_dict()}, tmp_path), swin, [(224, 224)])
    x = torch.randn(2, 3, 224, 224)
    assert (loaded(shifting, swin.state_dict(), tmp_path)(x) - swin(x)).abs().max() > 5e-4


def test_resnet(tmp_path):
    resnet = randomise(
        torchvision.models.resnet.ResNet(torchvision.models.resnet.Bottleneck, [2, 1, 1, 1], num_classes=5)
    )
    depth = dict(depths=(2, 1, 1, 1), stem_channels=64, base_channels=64, expansion=4)
    model = classifier(dict(type='GSAResNet', depth=depth, gsa_stages=(), out_indices=(3,)), 2048)
    assert_same(loaded(model, resnet.state_dict(), tmp_path), resnet, [(224, 224), (97, 130)])


@pytest.mark.parametrize('name', ['shunted', 'msf_vit_orig', 'msf_vit_msf-g2'])
def test_releases(golden, tmp_path, name):
    """The logits that the released code computed."""
    data = golden(name)
    c, weights = data['config'], data['state_dict']
    if name == 'shunted':
        arch = {key: c[key] for key in ('embed_dims', 'depths', 'num_heads')}
        backbone = dict(
            type='ShuntedTransformer',
            arch=dict(arch, stem_convs=c['num_conv']),
            mlp_ratios=c['mlp_ratios'],
            reductions=c['sr_ratios'],
            out_indices=(3,),
        )
        model = classifier(backbone, c['embed_dims'][-1], len(weights['head.bias']))
    else:
        form = {'msf_vit_orig': dict(form='plain'), 'msf_vit_msf-g2': dict(groups=2)}.get(name, {})
        arch = dict(embed_dim=c['dim'], depth=c['depth'], num_heads=c['heads'])
        backbone = dict(type='MSFViT', arch=arch, patch_size=c['patch_size'], mlp_ratio=c['mlp_dim'] / c['dim'], **form)
        model = classifier(backbone, c['dim'], len(weights['linear_head.1.bias']), 'NormLinearClsHead')
    loaded(model, {'model': weights, 'epoch': 99}, tmp_path)
    for x, outputs in zip(data['inputs'], data['outputs'], strict=True):
        with torch.no_grad():
            torch.testing.assert_close(model(x), outputs[-1], atol=1e-5, rtol=0)
