"""Models of timm as backbones. timm's own models, with random weights, are what they are compared with."""

import re

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from mmattn.analysis.features import blocks_of
from mmattn.backbones import TimmBackbone
from mmattn.errors import CheckpointError, InputError

SWIN = dict(embed_dim=12, depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2))
HIERA = dict(embed_dim=16, num_heads=1, stages=(1, 1, 2, 1))
#: name -> arguments, stages that are returned by default, size of images
MODELS = {
    'test_convnext': ({}, (0, 1, 2, 3), (64, 96)),  # It leaves out the rest of a patch.
    'test_resnet': ({}, (1, 2, 3, 4), (65, 97)),
    'test_byobnet': ({}, (1, 2, 3, 4), (64, 96)),
    'test_vit': ({}, (5,), (65, 97)),
    'swin_tiny_patch4_window7_224': (SWIN, (0, 1, 2, 3), (65, 97)),
    'hiera_tiny_224': (dict(HIERA, img_size=(64, 96)), (0, 1, 2, 3), (64, 96)),
}
every_model = pytest.mark.parametrize('name', MODELS)


def saved(folder, name, **arguments):
    """A model of timm with random weights, and a file of it."""
    torch.manual_seed(0)
    model = timm.create_model(name, **arguments)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    torch.save(model.state_dict(), folder / 'whole.pth')
    return model.eval(), str(folder / 'whole.pth')


def meta_layout(state_dict):
    """timm's ConvNeXt under the names of its authors and of DINOv3's files."""
    renames = {
        r'^stem\.': 'downsample_layers.0.',
        r'^stages\.(\d)\.downsample\.': r'downsample_layers.\1.',
        r'^(stages\.\d)\.blocks\.': r'\1.',
        r'\.conv_dw\.': '.dwconv.',
        r'\.mlp\.fc([12])\.': r'.pwconv\1.',
        r'^head\.norm\.': 'norm.',
        r'^head\.fc\.': 'head.',
    }
    renamed = {}
    for name, value in state_dict.items():
        for pattern, new in renames.items():
            name = re.sub(pattern, new, name)
        renamed[name] = value
    return renamed


@every_model
def test_maps_are_timms(name, tmp_path):
    """With the weights of a whole classifier, the maps are those of timm's model, for images of any size where it takes
    these, and its own weights load again."""
    arguments, indices, size = MODELS[name]
    whole, file = saved(tmp_path, name, **arguments)
    backbone = TimmBackbone(name, init_cfg=dict(type='Pretrained', checkpoint=file), **arguments)
    backbone.init_weights()
    assert backbone.out_indices == indices
    own_size = whole.pretrained_cfg['input_size'][1:] if name.startswith(('swin', 'test_vit')) else size
    with torch.no_grad():
        x = torch.randn(2, 3, *own_size)
        maps = backbone.eval()(x)
        theirs = whole.forward_intermediates(x, indices=list(indices), intermediates_only=True)
        for own, expected in zip(maps, theirs, strict=True):
            torch.testing.assert_close(own, expected)
        shapes = [tuple(out.shape) for out in backbone(torch.randn(1, 3, *size))]
    strides = [backbone.strides[i] for i in indices]
    assert shapes == [(1, c, *(-(-side // s) for side in size)) for c, s in zip(backbone.out_channels, strides)]
    assert all(out.is_contiguous() for out in maps)
    again = TimmBackbone(name, **arguments)
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again.eval()(x)[-1], maps[-1])


def test_weights_of_the_authors(tmp_path):
    """timm's function of the model translates them."""
    whole, file = saved(tmp_path, 'test_convnext')
    torch.save(meta_layout(whole.state_dict()), file)
    backbone = TimmBackbone('test_convnext', out_indices=(0, 2))
    backbone.load_pretrained(file)
    own = {f'model.{name}': value for name, value in whole.state_dict().items()}
    assert all(torch.equal(value, own[name]) for name, value in backbone.state_dict().items())


def test_table_of_positions_is_fitted(tmp_path):
    _, file = saved(tmp_path, 'test_vit')
    backbone = TimmBackbone('test_vit', img_size=64)
    backbone.load_pretrained(file)
    assert backbone.model.pos_embed.shape[1] - 1 == (64 // 16) ** 2


def test_weights_that_do_not_fit_are_refused(tmp_path, log):
    """Weights of another model, with a tensor less or one more; with settings that tensors do not show."""
    whole, file = saved(tmp_path, 'test_resnet')
    backbone = TimmBackbone('test_convnext')
    with pytest.raises(CheckpointError, match='they look like'):
        backbone.load_pretrained(file)
    weights = whole.state_dict()
    backbone = TimmBackbone('test_resnet')
    for changed in ({**weights, 'colour': torch.zeros(1)}, {k: v for k, v in weights.items() if k != 'conv1.0.weight'}):
        torch.save(changed, file)
        with pytest.raises(CheckpointError, match='1 not used: model.colour|1 missing: model.conv1.0.weight'):
            backbone.load_pretrained(file)
    noted = dict(meta=dict(mmattn={'': dict(backbone.settings_note, name='other')}), state_dict=backbone.state_dict())
    torch.save(noted, file)
    with pytest.raises(CheckpointError, match="name='other' instead of 'test_resnet'"):
        backbone.load_pretrained(file)


def test_names_and_arguments_that_timm_does_not_know():
    """mmattn.timm's names are no models of timm; weights come by init_cfg alone."""
    with pytest.raises(InputError, match='name must be that of a model of timm, not 5'):
        TimmBackbone(5)
    with pytest.raises(CheckpointError, match='has no model convnext_tin: did you mean'):
        TimmBackbone('convnext_tin')
    with pytest.raises(ValueError, match='set init_cfg'):
        TimmBackbone('test_vit', pretrained=True)
    with pytest.raises(TypeError, match='drop_path'):
        TimmBackbone('test_convnext', drop_path=0.1)


def test_fixed_sizes_are_named():
    backbone = TimmBackbone('hiera_tiny_224', **HIERA)
    with pytest.raises(InputError, match=r'hiera_tiny_224 of timm takes images of \(224, 224\) pixels only'):
        backbone(torch.zeros(1, 3, 64, 64))


@every_model
def test_frozen_stages(name):
    """The stem with its positions, and the first groups, get no gradients and stay in evaluation mode, until the
    attribute says another number."""
    backbone = TimmBackbone(name, frozen_stages=1, **MODELS[name][0]).train()
    sum(out.sum() for out in backbone(torch.randn(2, 3, *MODELS[name][2]))).backward()
    frozen, groups = {n for n, p in backbone.named_parameters() if not p.requires_grad}, backbone._groups(coarse=True)
    assert frozen == {f'model.{n}' for n, _ in backbone.model.named_parameters() if groups[n] <= 1} != set()
    assert all(p.grad is None for p in backbone.parameters() if not p.requires_grad)
    for i, modules in enumerate(backbone.stage_modules()):
        parts = [part for module in modules for part in module.modules() if not isinstance(part, nn.ParameterList)]
        assert all(part.training == (i > 1) for part in parts)
    backbone.frozen_stages = -1
    assert all(p.requires_grad for p in backbone.parameters())


def test_frozen_stages_of_layers_whose_train_returns_nothing():
    """timm's layers whose ``train`` returns nothing are frozen, too."""
    backbone = TimmBackbone('levit_128s', frozen_stages=1)
    assert not any(p.requires_grad for p in backbone.model.stem.parameters()) and not backbone.model.stem.training


def test_sizes_of_hybrids():
    """The sides of a map are rounded up by the CNN of a hybrid and down by its ViT: other sizes are refused."""
    backbone = TimmBackbone('vit_tiny_r_s16_p8_224', out_indices=(0,)).eval()
    (found,) = backbone(torch.zeros(1, 3, 64, 32))
    assert found.shape == (1, 192, 2, 1)
    with pytest.raises(InputError, match=r'multiples of 32 pixels, not \(65, 64\): pad them'):
        backbone(torch.zeros(1, 3, 65, 64))


def test_frozen_stages_that_are_not_there():
    with pytest.raises(ValueError, match='frozen_stages must be from -1 to 4, not 5'):
        TimmBackbone('test_convnext', frozen_stages=5)
    with torch.device('meta'), pytest.raises(ValueError, match='timm has no groups of layers for caformer_s18'):
        TimmBackbone('caformer_s18', frozen_stages=0)


def test_norm_eval():
    backbone = TimmBackbone('test_resnet', norm_eval=True).train()
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms and not any(norm.training for norm in norms) and backbone.model.layer1.training


@every_model
def test_layer_decay_is_timms(name):
    """Rates are those of timm's layer decay, once more decayed: heads come after the backbone."""
    backbone = TimmBackbone(name, **MODELS[name][0])
    scales = {
        parameter: group['lr_scale']
        for group in param_groups_layer_decay(backbone.model, layer_decay=0.5, weight_decay=0.0)
        for parameter in group['params']
    }
    for parameter_name, parameter in backbone.named_parameters():
        depth, count = backbone.get_layer_depth(f'backbone.{parameter_name}', 'backbone.')
        assert 0.5 ** (count - depth - 1) == pytest.approx(scales[parameter] * 0.5)
    assert backbone.get_layer_depth('neck.conv.weight', 'backbone.')[0] == count - 1


def test_activations_are_recomputed():
    """Gradients are the same, and models of timm that cannot do it are named."""
    plain, backbone = (TimmBackbone('test_convnext', with_cp=with_cp) for with_cp in (False, True))
    backbone.load_state_dict(plain.state_dict())
    x, calls = torch.randn(2, 3, 64, 64), []
    backbone.model.stages[1].blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    for each in (plain, backbone):
        sum(out.square().sum() for out in each(x)).backward()
    assert len(calls) == 2
    for (name, a), b in zip(plain.named_parameters(), backbone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    with torch.device('meta'), pytest.raises(ValueError, match='leave out with_cp'):
        TimmBackbone('coat_tiny', with_cp=True)


def test_analysis_is_refused():
    """timm's blocks are not read by the tools that draw attention."""
    with pytest.raises(InputError, match='can be analysed, not TimmBackbone'):
        blocks_of(TimmBackbone('test_convnext'))


def test_init_weights_keeps_what_timm_made():
    """MMEngine calls init_weights of the parts of a module; timm's has arguments that it does not know."""
    backbone = TimmBackbone('test_vit', weight_init='jax')
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    backbone.init_weights()
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
