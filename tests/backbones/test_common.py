"""What holds for every backbone, in its small form."""

import copy
import io
import re
from collections import Counter

import pytest
import torch
from mmcv.cnn import fuse_conv_bn
from mmengine.registry import MODELS
from torch import nn
from torch.nn.modules.module import _forward_unimplemented

from mmattn.backbones.base import Backbone
from mmattn.errors import InputError
from tests.backbones.cases import CASES, every_backbone


def test_every_backbone_has_a_case():
    """The tests of all backbones leave none out but TimmBackbone, whose stages and blocks are timm's. The projects
    register others."""
    classes = [cls for cls in MODELS.module_dict.values() if isinstance(cls, type) and issubclass(cls, Backbone)]
    assert {cls.__name__ for cls in classes if cls.__module__.startswith('mmattn.')} == {*CASES, 'TimmBackbone'}


@every_backbone
@pytest.mark.parametrize('frozen_stages', [-1, 2])
def test_frozen_stages(case, frozen_stages):
    """The stem and the first stages get no gradients and stay in eval mode after train(). The rest trains."""
    backbone = case.build(case.small, frozen_stages=frozen_stages, drop_path_rate=0.5).train()
    sum(out.sum() for out in backbone(torch.randn(2, 3, 64, 64))).backward()
    for i, modules in enumerate(backbone.stage_modules()):
        for module in modules:
            frozen = i <= frozen_stages
            assert all(m.training != frozen for m in module.modules())
            assert all((p.grad is None) == frozen for p in module.parameters())


@every_backbone
def test_frozen_stages_set_later(case):
    """Setting the attribute does what the argument does, also to batch norms. A frozen scale of norm_cfg and norm_eval
    stay. A wrong number is refused, and changes nothing."""
    norms = dict(norm_eval=True, norm_cfg=dict(type='BN', requires_grad=False)) if case.batch_norm else {}

    def state(backbone):
        return [module.training for module in backbone.modules()], [p.requires_grad for p in backbone.parameters()]

    backbone = case.build(case.small, **norms).train()
    for number in (2, -1, 4, 1, 0, -1):
        backbone.frozen_stages = number
        assert backbone.frozen_stages == number
        assert state(backbone) == state(case.build(case.small, frozen_stages=number, **norms).train())
    with pytest.raises(ValueError, match='frozen_stages'):
        backbone.frozen_stages = 5
    assert state(backbone) == state(case.build(case.small, **norms).train())


@every_backbone
@pytest.mark.parametrize('layer', ['Conv2d', 'Linear'])
def test_init_cfg_reaches_layers_of_a_type(case, layer):
    """MMEngine compares the name with that of a layer's class and of its direct bases only."""
    backbone = case.build(case.small, init_cfg=dict(type='Constant', layer=layer, val=7))
    backbone.init_weights()
    layers = {name: module for name, module in backbone.named_modules() if isinstance(module, getattr(nn, layer))}
    assert [name for name, module in layers.items() if not module.weight.eq(7).all()] == []


@every_backbone
def test_filled_after_it_was_built(case):
    """Built without memory, then given memory of any contents: a state dict is all that a backbone computes with."""
    backbone = case.build(case.small).eval()
    with torch.device('meta'):
        empty = case.build(case.small).eval()
    empty.to_empty(device='cpu')
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):
            tensor.fill_(77)
    empty.load_state_dict(backbone.state_dict())
    x = torch.randn(1, 3, 64, 64)
    assert all(torch.equal(*maps) for maps in zip(empty(x), backbone(x), strict=True))


def test_other_images_are_refused():
    case = CASES['MSFViT']
    for shape in ((3, 64, 64), (2, 4, 64, 64), (2, 3, 0, 64), (2, 3, 64, 0)):
        message = rf'{case.name} takes images \(B, 3, H, W\) .* not {re.escape(str(shape))}'
        with pytest.raises(InputError, match=message):
            case.build(case.small)(torch.zeros(shape))
    with pytest.raises(InputError, match='floating-point numbers, not torch.uint8'):
        case.build(case.small)(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))


@every_backbone
def test_images_of_float64(case):
    """NumPy's floats, which even autocast leaves as they are, are for weights of float64 only."""
    backbone, x = case.build(case.small), torch.zeros(2, 3, 64, 64, dtype=torch.float64)
    with pytest.raises(InputError, match='weights of torch.float32 and takes no images of torch.float64'):
        backbone(x)
    assert backbone.double()(x)[-1].dtype == x.dtype


@every_backbone
@pytest.mark.parametrize('out_indices', [(0,), (1, 3)])
def test_out_indices(case, out_indices):
    """Any ascending choice of stages gives the same maps as all stages together. Every parameter gets a gradient."""
    whole, part = case.build(case.small).eval(), case.build(case.small, out_indices=out_indices).eval()
    part.load_state_dict(whole.state_dict())
    x = torch.randn(1, 3, 64, 64)
    maps = part(x)
    for i, out in zip(out_indices, maps, strict=True):
        torch.testing.assert_close(out, whole(x)[i])
    sum(out.sum() for out in maps).backward()
    assert all(p.grad is not None for p in part.parameters())


@every_backbone
def test_fused_norms(case):
    """MMCV's fuse_conv_bn changes no map. It fuses a batch norm with the convolution that is registered before it."""
    backbone = case.build(case.small).eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.running_mean, module.running_var, module.weight, module.bias):
                nn.init.uniform_(value, 0.5, 1.5)
    x = torch.randn(1, 3, 64, 64)
    for out, expected in zip(fuse_conv_bn(copy.deepcopy(backbone))(x), backbone(x), strict=True):
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_unfrozen_after_norms_were_fused():
    """Norms that MMCV's fuse_conv_bn has removed from frozen stages are not looked for."""
    backbone = CASES['GSAResNet'].build(CASES['GSAResNet'].small, frozen_stages=1).eval()
    fuse_conv_bn(backbone).frozen_stages = -1
    assert all(p.requires_grad for stage in backbone.stage_modules() for part in stage for p in part.parameters())


@every_backbone
@pytest.mark.parametrize('train', [False, True])
def test_blocks_are_recomputed(case, train):
    """With with_cp, each block is computed a second time in the backward pass of a training, and never otherwise."""
    backbone = case.build(case.small, with_cp=True).train(train)
    blocks = [module for module in backbone.modules() if getattr(module, 'is_block', False)]
    calls = Counter()
    for block in blocks:
        block.register_forward_pre_hook(lambda block, inputs: calls.update([block]))
    sum(out.sum() for out in backbone(torch.randn(2, 3, 64, 64))).backward()
    assert calls == dict.fromkeys(blocks, 2 if train else 1)


PRECISIONS = {'float32': (torch.float32, False), 'bfloat16': (torch.bfloat16, False), 'autocast': (torch.float32, True)}


@every_backbone
@pytest.mark.parametrize('with_cp', [False, True])
def test_lent_weights(case, with_cp):
    """With weights that torch.func.functional_call lends to a backbone for one pass, gradients are those of these
    weights, and not of its own, also where activations are computed again."""
    backbone = case.build(case.tiny, drop_path_rate=0.0, with_cp=with_cp).train(with_cp)
    images = torch.randn(2, 3, 64, 96)
    lent = {name: (p.detach() * 1.25).requires_grad_() for name, p in backbone.named_parameters()}
    sum(out.square().mean() for out in torch.func.functional_call(backbone, lent, (images,))).backward()
    backbone.load_state_dict(lent, strict=False)
    sum(out.square().mean() for out in backbone(images)).backward()
    for name, own in backbone.named_parameters():
        torch.testing.assert_close(lent[name].grad, own.grad)


@every_backbone
@pytest.mark.parametrize('precision', PRECISIONS)
def test_forward_hooks_fire(case, precision):
    """The forward hooks of all modules fire in every precision, as tools for features and quantisation expect. Only
    containers have none: they define no forward, or are a Sequential whose modules are called one by one."""
    dtype, autocast = PRECISIONS[precision]
    backbone = case.build(case.small).to(dtype).eval()
    calls = Counter()
    for name, module in backbone.named_modules():
        module.register_forward_hook(lambda module, inputs, output, name=name: calls.update([name]))
    with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
        backbone(torch.randn(1, 3, 64, 64, dtype=dtype))
    called = {
        name
        for name, module in backbone.named_modules()
        if type(module).forward is not _forward_unimplemented and not isinstance(module, nn.Sequential)
    }
    assert called - set(calls) == set()


@every_backbone
def test_registered_for_every_scope(case):
    """A config of any of OpenMMLab's packages finds the backbone by its bare name."""
    for scope in ('mmdet', 'mmseg', 'mmpretrain', 'mmengine'):
        with MODELS.switch_scope_and_registry(scope) as registry:
            assert registry.get(case.name).__name__ == case.name


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(out_indices=(1, 0)), 'out_indices must be ascending'),
        (dict(out_indices=()), 'out_indices'),
        (dict(frozen_stages=-2), 'frozen_stages'),
        (dict(with_cp='no'), 'with_cp must be True or False'),
        (dict(arch=dict(embed_dim=8)), 'lacks'),
        (dict(pretrained='resnet50'), 'no argument pretrained.*init_cfg=.*pretrained=None in a segmentor'),
    ],
)
def test_bad_arguments_are_named(wrong, message):
    """Arguments that all backbones check in the same place."""
    case = CASES['GSAResNet']
    with pytest.raises(ValueError, match=message):
        case.build(case.small, **wrong)


@every_backbone
@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(out_indices=(0, 4)), 'out_indices'),
        (dict(frozen_stages=5), 'frozen_stages'),
        (dict(in_channels=0), 'in_channels'),
        (dict(arch='huge'), "not 'huge'"),
        (dict(drop_path=0.1), "'drop_path'"),
    ],
)
def test_arguments_reach_their_checks(case, wrong, message):
    """Each backbone hands them on, and takes no unknown one."""
    with pytest.raises((ValueError, TypeError), match=message):
        case.build(case.small, **wrong)


@every_backbone
def test_bad_rates_are_named(case):
    """Of every dropout, although torch would refuse some of them in the first training step only."""
    for name in case.dropouts:
        with pytest.raises(ValueError, match=f'{name} must be in'):
            case.build(case.small, **{name: 1.0})


@every_backbone
def test_bad_architectures_are_named(case):
    """Every number of an architecture."""
    for key, value in case.small['arch'].items():
        wrong = (*value[:-1], -1) if isinstance(value, tuple) else -1
        with pytest.raises(ValueError, match=f': {key}'):
            case.build(case.small, arch={**case.small['arch'], key: wrong})


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
@pytest.mark.every(3)
def test_torchscript_traces_serve_all_sizes(case):
    """A trace that was made of an image without padding has the same maps for others, also after it was stored."""
    backbone = case.build(case.tiny).eval()
    with torch.no_grad():
        stored = io.BytesIO()
        torch.jit.save(torch.jit.trace(backbone, torch.randn(1, 3, 64, 64), check_trace=False), stored)
        x = torch.randn(2, 3, 97, 75)
        traced = torch.jit.load(io.BytesIO(stored.getvalue()))
        for out, expected in zip(traced(x), backbone(x), strict=True):
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures('any_weights')
@every_backbone
def test_arch_names_and_dicts_are_the_same(case):
    """A name of the zoo gives the same backbone as its dict. An unknown key is an error."""
    for arch, values in MODELS.get(case.name).arch_zoo.items():
        with torch.device('meta'):
            a, b = case.build(dict(arch=arch)), case.build(dict(arch=dict(values)))
        assert {k: v.shape for k, v in a.state_dict().items()} == {k: v.shape for k, v in b.state_dict().items()}
    with pytest.raises(ValueError, match='has unknown colour'):
        case.build(case.small, arch=dict(values, colour=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    'case, arch',
    [
        pytest.param(case, arch, id=f'{name}-{arch}')
        for name, case in CASES.items()
        for arch in MODELS.get(name).arch_zoo
    ],
)
def test_full_size(case, arch):
    """Every released size trains: the maps are finite, and so is the gradient of every parameter."""
    backbone = case.build(dict(arch=arch)).train()
    maps = backbone(torch.randn(2, 3, 64, 64))
    sum(out.square().mean() for out in maps).backward()
    assert all(out.isfinite().all() for out in maps)
    assert all(p.grad.isfinite().all() for p in backbone.parameters())
