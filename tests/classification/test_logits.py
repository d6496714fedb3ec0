"""Logits of whole classifiers are those of the released code, of timm and of torchvision, whose weights load strictly
as they are. Weights are random, and no tensor has its initial value."""

import re
from functools import partial

import pytest
import timm
import torch
import torchvision
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint
from torch import nn

from mmattn.backbones.patch_embed import position_code

pytest.importorskip('mmpretrain')

DEPTHS, HEADS = (1, 1, 2, 2), (1, 2, 4, 8)
SWIN = dict(arch=dict(embed_dim=16, depths=DEPTHS, num_heads=HEADS), out_indices=(3,), shift_small_maps=False)
#: the last map has one window, one along an axis, and several
SWIN_SIZES = ((224, 224), (448, 224), (180, 300), (256, 256))


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


def swin_of_torchvision():
    """The model, and its weights under Microsoft's names."""
    swin = torchvision.models.swin_transformer.SwinTransformer(
        patch_size=[4, 4], embed_dim=16, depths=DEPTHS, num_heads=HEADS, window_size=[7, 7], num_classes=5
    )
    weights = {}
    for name, value in randomise(swin).state_dict().items():
        name = re.sub(r'^features\.0\.0\.', 'patch_embed.proj.', name)
        name = re.sub(r'^features\.0\.2\.', 'patch_embed.norm.', name)
        name = re.sub(r'^features\.([1357])\.', lambda m: f'layers.{int(m[1]) // 2}.blocks.', name)
        name = re.sub(r'^features\.([246])\.', lambda m: f'layers.{int(m[1]) // 2 - 1}.downsample.', name)
        weights[name.replace('mlp.0.', 'mlp.fc1.').replace('mlp.3.', 'mlp.fc2.')] = value
    return swin, weights


def swin_of_timm():
    """timm's model is for one size."""
    swin = timm.models.SwinTransformer(embed_dim=16, depths=DEPTHS, num_heads=HEADS, num_classes=5)
    return randomise(swin), swin.state_dict()


SWINS = {'timm': (swin_of_timm, SWIN_SIZES[:1]), 'torchvision': (swin_of_torchvision, SWIN_SIZES)}


@pytest.mark.parametrize('source', SWINS)
def test_swin(tmp_path, source):
    """The plain form with biases, at sizes where no, one and both axes of the last map are shifted."""
    make, sizes = SWINS[source]
    swin, weights = make()
    model = classifier(dict(SWIN, type='MSFSwin', form='plain', proj_bias=True), 128)
    assert_same(loaded(model, {'model': weights}, tmp_path), swin, sizes)


def test_shift_counts(tmp_path):
    """At 224, a classifier that shifts its last map has other logits."""
    swin, weights = swin_of_timm()
    model = classifier(dict(SWIN, type='MSFSwin', form='plain', proj_bias=True, shift_small_maps=True), 128)
    x = torch.randn(2, 3, 224, 224)
    assert (loaded(model, weights, tmp_path)(x) - swin(x)).abs().max() > 5e-4


def test_frame_of_elsa_swin(tmp_path):
    """ELSA-Swin with window attention in all stages is a Swin Transformer, too, under other names."""
    swin, weights = swin_of_torchvision()
    released = {}
    for name, value in weights.items():
        if 'attn.qkv.' in name:
            q, k, v = value.chunk(3)
            released[name.replace('qkv', 'pre_proj')] = torch.cat((v, q, k))
        elif name.endswith('relative_position_bias_table'):
            released[name.replace('relative_position_bias_table', 'rb')] = value.t().flip(1)
        elif not name.endswith('relative_position_index'):
            released[name.replace('attn.proj', 'attn.post_proj')] = value
    arch = dict(SWIN['arch'], group_width=4)
    model = classifier(dict(SWIN, type='ELSASwin', arch=arch, elsa_stages=()), 128)
    assert_same(loaded(model, {'state_dict': released}, tmp_path), swin, SWIN_SIZES)


def test_vit():
    """A plain ViT of timm, without class token, without biases in attention, and with its norm after pooling. It has
    no norm of raw patches, and is given our code of positions."""
    norm = partial(nn.LayerNorm, eps=1e-5)
    vit = timm.models.VisionTransformer(
        img_size=(64, 96),
        embed_dim=48,
        depth=2,
        num_heads=3,
        num_classes=5,
        class_token=False,
        global_pool='avg',
        fc_norm=True,
        qkv_bias=False,
        norm_layer=norm,
        embed_norm_layer=norm,
    )
    randomise(vit).pos_embed.data = position_code(4, 6, 48).flatten(0, 1)[None]
    for block in vit.blocks:
        block.attn.proj.bias = None
    arch = dict(embed_dim=48, depth=2, num_heads=3)
    model = classifier(dict(type='MSFViT', arch=arch, form='plain'), 48, head='NormLinearClsHead')
    model.backbone.patch_embed.patch_norm = nn.Identity()
    weights = {}
    for name, value in vit.state_dict().items():
        name = name.replace('fc_norm.', 'linear_head.0.').replace('head.', 'linear_head.1.', name.startswith('head.'))
        name = name.replace('attn.qkv.', 'attn.pre_proj.').replace('attn.proj.', 'attn.post_proj.')
        weights[name] = value.permute(0, 2, 3, 1).flatten(1) if name == 'patch_embed.proj.weight' else value
    del weights['pos_embed']
    model.load_state_dict(weights)
    assert_same(model, vit, [(64, 96)])


@pytest.mark.parametrize(
    'make',
    [
        partial(torchvision.models.resnet.ResNet, torchvision.models.resnet.Bottleneck),
        partial(timm.models.ResNet, timm.models.resnet.Bottleneck),
    ],
    ids=['torchvision', 'timm'],
)
def test_resnet(tmp_path, make):
    resnet = randomise(make([2, 1, 1, 1], num_classes=5))
    depth = dict(depths=(2, 1, 1, 1), stem_channels=64, base_channels=64, expansion=4)
    model = classifier(dict(type='GSAResNet', depth=depth, gsa_stages=(), out_indices=(3,)), 2048)
    assert_same(loaded(model, resnet.state_dict(), tmp_path), resnet, [(224, 224), (97, 130)])


@pytest.mark.parametrize('name', ['shunted', 'msf_vit_orig', 'msf_vit_msf', 'msf_vit_msf-g2'])
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
