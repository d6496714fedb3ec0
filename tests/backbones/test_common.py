"""What holds for every backbone, in one small form of each. A new backbone adds a row to SMALL."""

import copy

import pytest
import torch
from mmcv.cnn import fuse_conv_bn
from mmengine.registry import MODELS, DefaultScope
from torch import nn

import mmattn  # noqa: F401, registers the backbones

SMALL = {
    'ELSASwin': dict(
        arch=dict(embed_dim=8, depths=(1, 1, 2, 2), num_heads=(1, 2, 4, 8), group_width=4), kernel_size=3, window_size=3
    ),
    'GSAResNet': dict(
        depth=dict(depths=(1, 1, 2, 1), stem_channels=8, base_channels=4, expansion=2),
        gsa_stages=(0, 2, 3),
        num_heads=2,
        img_size=64,
    ),
    'ShuntedTransformer': dict(
        arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 1), num_heads=(2, 2, 4, 4), stem_convs=1),
        mlp_ratios=(2, 2, 2, 2),
    ),
    'MSFViT': dict(arch=dict(embed_dim=16, depth=4, num_heads=2), out_indices=(0, 1, 2, 3)),
    'MSFSwin': dict(arch=dict(embed_dim=8, depths=(1, 1, 2, 2), num_heads=(1, 2, 4, 8)), window_size=3),
}

every_backbone = pytest.mark.parametrize('name', SMALL)


def build(name, **settings):
    if 'arch' in settings:
        settings[MODELS.get(name).arch_argument] = settings.pop('arch')
    return MODELS.build(dict(type=name, **{**copy.deepcopy(SMALL[name]), **settings}))


@every_backbone
@pytest.mark.parametrize('frozen_stages', [-1, 0, 2])
def test_frozen_stages(name, frozen_stages):
    """The stem and the first stages neither train nor leave eval mode, also after train(); the rest does both."""
    backbone = build(name, frozen_stages=frozen_stages, drop_path_rate=0.5).train()
    sum(out.sum() for out in backbone(torch.randn(2, 3, 64, 64))).backward()
    for i, modules in enumerate(backbone.stage_modules()):
        for module in modules:
            frozen = i <= frozen_stages
            assert all(m.training != frozen for m in module.modules())
            assert all((p.grad is None) == frozen for p in module.parameters())


@every_backbone
@pytest.mark.parametrize('out_indices', [(0,), (1, 3), (0, 1, 2)])
def test_out_indices(name, out_indices):
    """Any ascending choice of outputs, equal to those of the whole; no parameter is left without a gradient."""
    whole, part = build(name).eval(), build(name, out_indices=out_indices).eval()
    part.load_state_dict(whole.state_dict())
    x = torch.randn(1, 3, 64, 64)
    maps = part(x)
    for i, out in zip(out_indices, maps, strict=True):
        torch.testing.assert_close(out, whole(x)[i])
    sum(out.sum() for out in maps).backward()
    assert all(p.grad is not None for p in part.parameters())


@every_backbone
def test_fused_norms(name):
    """MMCV's fuse_conv_bn, which joins a batch norm with the convolution registered before it, changes no map."""
    backbone = build(name).eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.running_mean, module.running_var, module.weight, module.bias):
                nn.init.uniform_(value, 0.5, 1.5)
    x = torch.randn(1, 3, 64, 64)
    for out, expected in zip(fuse_conv_bn(copy.deepcopy(backbone))(x), backbone(x), strict=True):
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@every_backbone
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain', 'mmengine'])
def test_registered_for_every_scope(name, scope):
    """A config of any of OpenMMLab's packages finds the backbone by its bare name."""
    with DefaultScope.overwrite_default_scope(scope):
        assert type(build(name)).__name__ == name


@every_backbone
@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(out_indices=(0, 4)), 'out_indices'),
        (dict(out_indices=(1, 0)), 'out_indices'),
        (dict(out_indices=()), 'out_indices'),
        (dict(frozen_stages=5), 'frozen_stages'),
        (dict(frozen_stages=-2), 'frozen_stages'),
        (dict(drop_path_rate=1.5), 'drop_path_rate'),
        (dict(arch='huge'), "not 'huge'"),
        (dict(arch=dict(embed_dim=8)), 'lacks'),
        (dict(arch=3), 'not 3'),
        (dict(drop_path=0.1), "'drop_path'"),
    ],
)
def test_bad_arguments_are_named(name, wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(name, **wrong)


@every_backbone
def test_arch_names_and_dicts_are_the_same(name):
    """A name of the zoo is short for its dict, and a key too many is an error."""
    cls = MODELS.get(name)
    for arch, values in cls.arch_zoo.items():
        with torch.device('meta'):
            a, b = build(name, arch=arch), build(name, arch=dict(values))
        assert {k: v.shape for k, v in a.state_dict().items()} == {k: v.shape for k, v in b.state_dict().items()}
    with pytest.raises(ValueError, match='has unknown colour'):
        build(name, arch=dict(values, colour=1))
