"""timm's names for the backbones.

The first part is timm's own tests of models, with its names, adapted to ours: the models, and smaller images. These of
timm's tests do not pass, or do not apply:

- test_model_inference, test_model_load_pretrained, test_model_features_pretrained: we publish no weights.
- test_model_forward_intermediates_features: our features_only is the form that it tests, so it is
  test_model_forward_features.
- test_model_forward_torchscript: our operators and the choice between them are Python, which TorchScript does not
  compile. torch.compile, torch.export and ONNX work.
- test_model_forward_fx, test_model_backward_fx, test_model_forward_fx_torchscript,
  test_model_forward_torchscript_with_features_fx: a symbolic trace has no sizes, and ours are checked and padded.
"""

import copy
import functools
import math
import os
import re

import pytest
import safetensors.torch
import timm
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from timm.models import group_modules, group_parameters
from timm.models.volo import VOLO
from timm.optim import param_groups_weight_decay
from torch import nn

import mmattn.timm
from mmattn.backbones import ELSAVOLO
from mmattn.errors import InputError
from mmattn.weights import CheckpointError
from mmguard.runs.rows import read_row
from tests import ROOT
from tests.backbones.cases import CASES
from tests.configs import CONFIGS, named
from tests.timm.cases import VARIANTS, images, small

#: the smallest variant of each family, which `make test` tests with fewer blocks and channels
FAST = [
    *('elsa_swin_tiny', 'elsa_volo_d1', 'gsa_resnet38', 'msf_swin_tiny', 'msf_vit_tiny', 'nat_mini', 'shunted_tiny'),
    'transnext_micro',
]
#: those whose forward_features returns tokens, as timm's VOLO's
NON_STD = [name for name in VARIANTS if name.startswith('elsa_volo')]


def models(fast, names):
    """A mark: small models of the first names, and in the slow suite all of the second ones."""
    return pytest.mark.parametrize(
        'create_model',
        [pytest.param(lambda name=name, **arguments: small(name, **arguments), id=f'small-{name}') for name in fast]
        + [pytest.param(functools.partial(timm.create_model, name), id=name, marks=pytest.mark.slow) for name in names],
    )


every_model = models(FAST, VARIANTS)


@every_model
def test_model_forward(create_model):
    """Numbers come out, the same with checkpointing."""
    model = create_model().eval()
    inputs = images()
    outputs = model(inputs)
    assert outputs.shape == (1, 1000) and not outputs.isnan().any()
    model.set_grad_checkpointing()
    assert model.backbone.with_cp
    torch.testing.assert_close(model(inputs), outputs)


@every_model
def test_model_backward(create_model):
    """All parameters have gradients, with checkpointing too."""
    model = create_model(num_classes=42).train()
    model.set_grad_checkpointing()
    outputs = model(images(2))
    outputs.mean().backward()
    assert outputs.shape[-1] == 42 and not outputs.isnan().any()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


@models(*([name for name in names if name not in NON_STD] for names in (FAST, VARIANTS)))
def test_model_default_cfgs(create_model):
    """Head, pooling and classifier can be left out and replaced, and default_cfg describes the model."""
    model = create_model().eval()
    cfg, state_dict = model.default_cfg, model.state_dict()
    side = 64
    pool_size = [size * side // cfg['input_size'][1] for size in cfg['pool_size']]
    inputs = images(side=side)
    outputs = model.forward_features(inputs)
    outputs_pre = model.forward_head(outputs, pre_logits=True)
    assert list(outputs.shape) == [1, model.num_features, *pool_size]
    assert outputs_pre.shape == (1, model.head_hidden_size)

    model.reset_classifier(0)
    assert model.num_classes == 0
    torch.testing.assert_close(model(inputs), outputs_pre)
    model.reset_classifier(0, '')
    assert list(model(inputs).shape[2:]) == pool_size

    assert f'{cfg["classifier"]}.weight' in state_dict and f'{cfg["first_conv"]}.weight' in state_dict
    assert state_dict[f'{cfg["classifier"]}.weight'].shape[0] == cfg['num_classes']


@models(['elsa_volo_d1'], NON_STD)
def test_model_default_cfgs_non_std(create_model):
    """The same, of models whose features are tokens."""
    model = create_model().eval()
    cfg, state_dict = model.default_cfg, model.state_dict()
    inputs = images()
    outputs = model.forward_features(inputs)
    outputs_pre = model.forward_head(outputs, pre_logits=True)
    assert outputs.shape == (1, 1 + 4 * 4, model.num_features) and outputs_pre.shape == (1, model.head_hidden_size)

    model.reset_classifier(0)
    assert model.num_classes == 0
    torch.testing.assert_close(model(inputs), outputs_pre)
    assert create_model(num_classes=0)(inputs).shape == outputs_pre.shape

    assert all(state_dict[f'{layer}.weight'].shape[0] == cfg['num_classes'] for layer in cfg['classifier'])
    assert f'{cfg["first_conv"]}.weight' in state_dict


@every_model
def test_model_forward_features(create_model):
    """Maps have the channels and strides of feature_info."""
    model = create_model(features_only=True).eval()
    outputs, info = model(images()), model.feature_info
    assert len(outputs) == len(info.channels()) >= 3
    for channels, reduction, output in zip(info.channels(), info.reduction(), outputs):
        side = math.ceil(64 / reduction)
        assert output.shape == (1, channels, side, side) and not output.isnan().any()


@every_model
def test_model_forward_intermediates(create_model):
    """Maps have the channels and strides of feature_info, and the last one is that of forward_features."""
    model = create_model().eval()
    inputs = images()
    output, intermediates = model.forward_intermediates(inputs)
    assert len(intermediates) == len(model.feature_info) >= 3
    for info, each in zip(model.feature_info, intermediates):
        side = math.ceil(64 / info['reduction'])
        assert each.shape == (1, info['num_chs'], side, side) and not each.isnan().any()
    assert torch.equal(output, model.forward_features(inputs))
    model.set_grad_checkpointing()
    torch.testing.assert_close(model.forward_intermediates(inputs)[0], output)


@pytest.mark.parametrize('chosen', [[0, 1], [1, 3]], ids=str)
@pytest.mark.parametrize('model_name', ['elsa_swin_tiny', 'elsa_volo_d1', 'msf_vit_tiny', 'shunted_tiny'])
def test_pruned_features(model_name, chosen):
    """They are those of the whole model, and each parameter that is left takes part in them."""
    model = small(model_name)
    inputs = images(2)
    wanted = model.forward_intermediates(inputs, chosen, intermediates_only=True)
    stopped, _ = model.forward_intermediates(inputs, [0, 1], stop_early=True)
    assert torch.equal(stopped, model.forward_intermediates(inputs, [1], intermediates_only=True)[0])

    assert model.prune_intermediate_layers(chosen, prune_norm=True) == chosen
    maps = model.forward_intermediates(inputs, chosen, intermediates_only=True)
    torch.testing.assert_close(maps, wanted, rtol=0, atol=0)
    sum(each.sum() for each in maps).backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    last = wanted[-1].flatten(2).mT if model_name in NON_STD else wanted[-1]
    assert model.num_features == wanted[-1].shape[1] and torch.equal(model(inputs), last)


def test_settings_of_create_model():
    """in_chans, global_pool, rates and dtype arrive; names of timm and of the backbone are kept apart."""
    model = small(
        'shunted_tiny', in_chans=2, num_classes=0, global_pool='max', drop_rate=0.3, proj_drop_rate=0.2,
        drop_path_rate=0.4, dtype=torch.float64,
    )  # fmt: skip
    x = images(channels=2).double()
    torch.testing.assert_close(model(x), model.forward_features(x).amax((2, 3)))
    assert model.head.drop.p == 0.3 and {m.p for m in model.backbone.modules() if isinstance(m, nn.Dropout)} >= {0.2}
    assert model.backbone.block4[0].drop_path.drop_prob == pytest.approx(0.4)
    features = small('gsa_resnet38', features_only=True, in_chans=1, out_indices=(1, 3))
    assert [each.shape[1] for each in features(images(channels=1))] == features.feature_info.channels() == [16, 64]
    with pytest.raises(ValueError, match='feature_cls of features_only must be one of getter'):
        small('shunted_tiny', features_only=True, feature_cls='hook')
    with pytest.raises(ValueError, match='out_indices needs features_only=True'):
        small('shunted_tiny', out_indices=(1, 3))


def test_layers_and_decay():
    """timm's groups by layer are the depths of our own layer-wise decay; coarse ones are the stages."""
    model = small('elsa_swin_tiny')
    depths = group_parameters(model, model.group_matcher(), reverse=True)
    for name, depth in depths.items():
        assert depth == model.backbone.get_layer_depth(name, 'backbone.')[0]
    modules = group_modules(model, model.group_matcher(), reverse=True)
    assert modules['backbone.layers.1.blocks.0.norm1'] == 2 and modules['head.fc'] == 7
    coarse = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert coarse['backbone.layers.1.downsample.reduction.weight'] == 2 and coarse['head.fc.weight'] == 5
    volo = small('elsa_volo_d1')
    depths = group_parameters(volo, volo.group_matcher(), reverse=True)
    head = ('network.4.0.mlp.fc2', 'post_network.0.norm1', 'post_network.1.norm1', 'norm', 'fc', 'aux_head')
    named = [f'head.{name}.weight' for name in head[1:]]
    assert [depths[name] for name in (f'backbone.{head[0]}.weight', *named)] == [6, 7, 8, 9, 9, 9]
    assert depths['head.cls_token'] == 0


def undecayed(groups):
    """The tensors without weight decay in groups of an optimizer, except vectors."""
    return {id(one) for group in groups if not group['weight_decay'] for one in group['params'] if one.ndim > 1}


@pytest.mark.parametrize(
    'name, settings, peer, of_peer',
    [
        ('swin_frame_tiny', {}, 'swin_tiny_patch4_window7_224', {}),
        (
            'vit_frame_small',
            dict(embedding='deit', class_token=True, registers=4),
            'vit_small_patch16_224',
            dict(reg_tokens=4, no_embed_class=True),
        ),
        ('elsa_volo_d1', {}, 'volo_d1_224', {}),
    ],
)
def test_weight_decay_is_timms(name, settings, peer, of_peer):
    """What has no weight decay in timm's own model of the same kind has none here, and all else has it."""
    sizes = []
    for which, arguments in ((name, settings), (peer, of_peer)):
        model = timm.create_model(which, device='meta', **arguments)
        exempt = undecayed(param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay()))
        sizes.append(sorted(one.numel() for one in model.parameters() if id(one) in exempt))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    'name, settings, config',
    [
        ('elsa_swin_tiny', {}, 'elsa_swin/elsa-swin-t_in1k'),
        ('vit_frame_small', dict(embedding='deit'), 'shunted/ablations/deit-s_in1k'),
    ],
)
def test_weight_decay_is_the_recipes(name, settings, config):
    """What the family's config for ImageNet decays has weight decay here, except vectors, and all else has none."""
    cfg = read_row(CONFIGS / f'{config}.py')
    model = timm.create_model(name, device='meta', **settings)
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmpretrain'):
        recipe = MODELS.build(cfg.model)
        wrapper = build_optim_wrapper(recipe, dict(cfg.optim_wrapper, type='OptimWrapper'))
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    exempt, other = undecayed(groups), undecayed(wrapper.param_groups)
    parameters = dict(recipe.named_parameters())
    for each, parameter in model.backbone.named_parameters():
        assert (id(parameter) in exempt) == (id(parameters[f'backbone.{each}']) in other), each


@pytest.mark.parametrize('whole', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_volo_is_timms(tmp_path, whole):
    """With timm's weights, all outputs of a VOLO are timm's: features, logits with each pooling, maps with and without
    norm, and those of pruned models. Another number of classes replaces two layers only."""
    sizes = dict(layers=(2, 1, 2, 1), embed_dims=(8, 16, 16, 16), num_heads=(2, 4, 4, 4), stem_hidden_dim=8)
    theirs = timm.create_model('volo_d1_224') if whole else VOLO(**sizes, mlp_ratio=2, img_size=64)
    theirs.double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, float(parameter.dim() == 1 and parameter.std() == 0), 0.05)
    file = saved(theirs.state_dict(), tmp_path)
    create = timm.create_model if whole else small
    build = functools.partial(create, 'elsa_volo_d1', attention=[None] * 4, dtype=torch.float64)
    ours = build(checkpoint_path=file).eval()
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    x = images(2, 224 if whole else 64).double()
    close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        features = theirs.forward_features(x)
        close(ours.forward_features(x), features)
        close(ours(x), theirs(x))
        for pool in ('', 'avg', 'token'):
            theirs.global_pool, model = pool, build(checkpoint_path=file, global_pool=pool).eval()
            for pre_logits in (False, True):
                close(model.forward_head(features, pre_logits), theirs.forward_head(features, pre_logits))
        for norm in (False, True):
            (a, maps), (b, expected) = (model.forward_intermediates(x, norm=norm) for model in (ours, theirs))
            close((a, *maps), (b, *expected))
        for chosen, *prune in ([0], False, True), ([1], False, True), ([1, 3], False, True), ([0, 3], True, False):
            a, b = copy.deepcopy(ours), copy.deepcopy(theirs)
            assert a.prune_intermediate_layers(chosen, *prune) == b.prune_intermediate_layers(chosen, *prune)
            close(a(x), b(x))
            assert (a.num_features, a.num_classes) == (b.num_features, b.num_classes)
    other = build(pretrained=True, pretrained_cfg_overlay=dict(file=file), num_classes=5).state_dict()
    own = ours.state_dict()
    replaced = {f'head.{layer}.{kind}' for layer in ('fc', 'aux_head') for kind in ('weight', 'bias')}
    assert all(torch.equal(value, own[name]) != (name in replaced) for name, value in other.items())
    with pytest.raises(ValueError, match="global_pool must be one of 'token', 'avg', '', not 'max'"):
        ours.reset_classifier(3, 'max')


def test_class_attention_is_checkpointed():
    """It is computed once more in the backward pass, as the blocks before it."""
    model, calls = small('elsa_volo_d1').train(), []
    model.set_grad_checkpointing()
    model.head.post_network[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(images(2)).sum().backward()
    assert len(calls) == 2


def saved(tensors, folder):
    torch.save(tensors, folder / 'released.pth')
    return str(folder / 'released.pth')


def renamed(tensors, names):
    for ours, theirs in names.items():
        tensors = {name.replace(ours, theirs): value for name, value in tensors.items()}
    return tensors


def small_release(name, theirs):
    """Weights of a small model under the names of a release."""
    return renamed(small(name).state_dict(), {ours: released for released, ours in theirs.items()} | {'backbone.': ''})


@pytest.mark.parametrize(
    'name, layout, wrap, places',
    [
        (
            'elsa_swin_tiny',
            'elsa_swin_tiny_imagenet',
            lambda w: {'state_dict': {f'module.{key}': value for key, value in w.items()}, 'arch': 'elsa'},
            {'head.': 'head.fc.', 'norm.': 'backbone.norm3.'},
        ),
        ('shunted_tiny', 'shunted_t_imagenet', lambda w: {'model': w}, {'head.': 'head.fc.'}),
        (
            'msf_vit_small',
            'msf_vit_small_msf_imagenet',
            dict,
            {'linear_head.0.': 'head.norm.', 'linear_head.1.': 'head.fc.'},
        ),
    ],
)
@pytest.mark.parametrize('whole', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_released_classifiers(tmp_path, release, name, layout, wrap, places, whole):
    """checkpoint_path, and a file for pretrained, take them with their heads; other numbers of classes leave it out."""
    create_model = functools.partial(timm.create_model if whole else small, name)
    weights = release(layout) if whole else small_release(name, places)
    file = saved(wrap(weights), tmp_path)
    overlay = dict(pretrained=True, pretrained_cfg_overlay=dict(file=file))
    model, again = create_model(checkpoint_path=file), create_model(**overlay)
    tensors = model.state_dict()
    for theirs, ours in places.items():
        assert torch.equal(tensors[f'{ours}weight'], weights[f'{theirs}weight'])
    assert all(torch.equal(value, tensors[key]) for key, value in again.state_dict().items())
    other = create_model(**overlay, num_classes=5)
    own = other.state_dict()
    assert own['head.fc.weight'].shape[0] == 5
    assert all(torch.equal(own[key], tensors[key]) for key in own if key.startswith('backbone.'))
    features = create_model(**overlay, features_only=True).state_dict()
    assert all(torch.equal(value, tensors[key.removeprefix('model.')]) for key, value in features.items())


def test_wrong_weights_are_refused(tmp_path):
    """Weights of another variant, and none at all, are told in a sentence."""
    file = saved(small('msf_vit_tiny').state_dict(), tmp_path)
    wider = dict(arch=dict(embed_dim=32, depth=2, num_heads=1))
    for arguments in (dict(checkpoint_path=file), dict(pretrained=True, pretrained_cfg_overlay=dict(file=file))):
        with pytest.raises(CheckpointError, match='the weights do not fit MSFViT: they are of another architecture'):
            small('msf_vit_tiny', **wider, **arguments)
    with pytest.raises(InputError, match='publishes no weights of shunted_tiny: name a file'):
        small('shunted_tiny', pretrained=True)
    assert not timm.list_models('elsa*', pretrained=True) and 'elsa_swin_tiny' in timm.list_models('elsa*')


@pytest.mark.parametrize(
    'name, model',
    [
        (
            'msf_vit_tiny',
            dict(neck=dict(type='GlobalAveragePooling'), head=dict(type='NormLinearClsHead', in_channels=16)),
        ),
        ('elsa_volo_d1', dict(head=dict(type='VOLOHead', in_channels=16, num_heads=4, mlp_ratio=2))),
    ],
)
def test_trained_classifiers(tmp_path, name, model):
    """Those of MMPretrain load with their heads; the scores are MMPretrain's."""
    trained = classifier(name, **model)
    file = saved({f'module.{name}': value for name, value in trained.state_dict().items()}, tmp_path)
    for arguments in (dict(checkpoint_path=file), dict(pretrained=True, pretrained_cfg_overlay=dict(file=file))):
        again = small(name, num_classes=3, **arguments)
        x = images()
        torch.testing.assert_close(again(x), trained(x), rtol=0, atol=0)


def classifier(name, head, **model):
    """The small model of a name in an ImageClassifier of MMPretrain with 3 classes."""
    pytest.importorskip('mmpretrain')
    import mmattn.classification  # noqa: F401, registers the heads

    case = CASES[VARIANTS[name][0].backbone.__name__]
    last = (len(case.small['arch']['depths']) - 1,) if 'depths' in case.small['arch'] else None
    backbone = case.config(case.small, out_indices=last)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        config = dict(type='ImageClassifier', backbone=backbone, head=dict(head, num_classes=3), **model)
        return MODELS.build(config).eval()


def test_checkpoints_of_trainings(tmp_path):
    """Those of a detector load, with the settings that they note, and without a head."""
    head = dict(type='NormLinearClsHead', in_channels=16)
    trained = classifier('msf_vit_tiny', head, neck=dict(type='GlobalAveragePooling'))
    noted = dict(type='MSFViT', norm_eps=1e-3)
    tensors = {**trained.state_dict(), 'roi_head.fc.weight': torch.zeros(2, 2)}
    tensors = {key: value for key, value in tensors.items() if not key.startswith('head.')}
    file = saved(dict(state_dict=tensors, meta=dict(mmattn=dict(backbone=noted))), tmp_path)
    overlay = dict(pretrained=True, pretrained_cfg_overlay=dict(file=file))
    with pytest.raises(CheckpointError, match='were trained with norm_eps=0.001'):
        small('msf_vit_tiny', **overlay)
    detector = small('msf_vit_tiny', norm_eps=1e-3, features_only=True, **overlay)
    assert torch.equal(detector.model.backbone.blocks[0].norm1.weight, trained.backbone.blocks[0].norm1.weight)


@pytest.mark.parametrize(
    'name, config',
    [
        ('elsa_swin_tiny', 'elsa-swin-t'),
        ('elsa_volo_d5', 'elsa-volo-d5'),
        ('gsa_resnet50', 'gsa-r50'),
        ('msf_vit_small', 'msf-vit-s'),
        ('dinat_large_384', 'dinat-l_384'),
        ('shunted_tiny', 'shunted-t'),
        ('transnext_small', 'transnext-s'),
    ],
)
def test_images_are_those_of_the_configs(name, config):
    """Size, crop, mean and standard deviation of test images, and settings of the backbone in a classifier."""
    cfg, ours = timm.get_pretrained_cfg(name), named(f'{config}_in1k')
    _, resize, *_ = ours.test_dataloader.dataset.pipeline
    assert math.floor(cfg.input_size[1] / cfg.crop_pct) == resize.scale and cfg.interpolation == resize.interpolation
    crops = [step for step in ours.test_dataloader.dataset.pipeline if step.type.endswith('CenterCrop')]
    assert [step.get('crop_size', step.get('size')) for step in crops] == [cfg.input_size[1]]
    assert ours.data_preprocessor.mean == pytest.approx([255 * value for value in cfg.mean])
    assert ours.data_preprocessor.std == pytest.approx([255 * value for value in cfg.std])
    family, _ = mmattn.timm.variants()[name]
    assert family.arguments == {key: ours.model.backbone.get(key) for key in family.arguments}


def test_backbone_with_a_norm_has_no_head(tmp_path):
    """VOLO's final norm has a place in the head, which is no head by itself."""
    model = small('elsa_volo_d1', num_classes=3)
    settings = {key: value for key, value in CASES['ELSAVOLO'].small.items() if key != 'out_indices'}
    torch.save(ELSAVOLO(**settings, final_norm=True).state_dict(), tmp_path / 'backbone.pth')
    before = model.head.fc.weight.clone()
    model.load_pretrained(tmp_path / 'backbone.pth')
    assert torch.equal(model.head.fc.weight, before)


class Runs:
    """An object whose pickle makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize(
    'weights, message',
    [
        (lambda model, folder: dict(state_dict=dict(a=Runs(folder))), 'it has posix.mkdir beside tensors'),
        (lambda model, folder: {**model, 'head.fc.weight': torch.zeros(3, 7)}, 'the head does not fit'),
    ],
)
def test_init_cfg_is_strict(tmp_path, weights, message):
    """init_cfg loads as everywhere else: without code, or a head that does not fit."""
    model = small('msf_vit_tiny', num_classes=3)
    torch.save(weights(model.state_dict(), tmp_path / 'ran'), tmp_path / 'w.pth')
    with pytest.raises(CheckpointError, match=message):
        small('msf_vit_tiny', num_classes=3, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'w.pth')))
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('prefix', [None, 'ema.backbone', 'ema.backbone.'])
def test_init_cfg_takes_the_head(tmp_path, prefix):
    """With a prefix the head is the one beside that backbone, not another one in the file. And layers that no weights
    are for start as the other entries of init_cfg say."""
    model = small('msf_vit_tiny', num_classes=3)
    start = '' if prefix is None else 'ema.'
    tensors = {f'{start}{name}': value for name, value in model.state_dict().items()}
    if prefix:
        tensors.update((name, value + 1) for name, value in model.state_dict().items())
    safetensors.torch.save_file(tensors, tmp_path / 'w.safetensors')
    pretrained = dict(type='Pretrained', checkpoint=str(tmp_path / 'w.safetensors'))
    if prefix:
        pretrained['prefix'] = prefix
    init_cfg = [pretrained, dict(type='Constant', layer='Linear', val=0.5)]
    again = small('msf_vit_tiny', num_classes=3, init_cfg=init_cfg)
    own = again.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    other = small('msf_vit_tiny', num_classes=5, init_cfg=init_cfg)
    assert (other.head.fc.weight == 0.5).all()
    assert torch.equal(other.backbone.blocks[0].mlp.fc1.weight, model.backbone.blocks[0].mlp.fc1.weight)
    with pytest.raises(CheckpointError, match='there is no checkpoint none.pth'):
        small('msf_vit_tiny', init_cfg=dict(type='Pretrained', checkpoint='none.pth'))


def test_secrets_of_an_address(tmp_path, log):
    """The log of weights without a head, or of another classifier, does not have the query of a signed address."""
    model = small('nat_mini', num_classes=3)
    for name, contents in (('a', model.backbone.state_dict()), ('b', small('nat_mini', num_classes=5).state_dict())):
        torch.save(contents, file := tmp_path / f'{name}.pth?X-Amz-Signature=53cret')
        model.load_pretrained(file)
        with pytest.raises(CheckpointError, match=rf'/{name}.pth\?\*\*\* has ') as error:
            model.load_pretrained(file, whole_head=True)
        assert '53cret' not in str(error.value)
    assert sum('pth?***' in line for line in log) >= 4 and not any('53cret' in line for line in log)


def test_table_of_names():
    """The page lists all names, with their backbones."""
    rows = re.findall(r'^\| `(\w+)\*` \| (.*) \| `(\w+)` \|$', (ROOT / 'docs' / 'timm.md').read_text(), re.MULTILINE)
    listed = {f'{start}{each}': backbone for start, names, backbone in rows for each in re.findall(r'`(\w+)`', names)}
    assert listed == {name: family.backbone.__name__ for name, (family, _) in VARIANTS.items()}


def test_dropout_of_class_attention():
    """attn_drop_rate reaches the attention of every block: in training, the class token sees other tokens each time."""
    model = small('elsa_volo_d1', attn_drop_rate=0.5)
    head, x = model.head.train(), torch.randn(1, model.num_features, 4, 4)
    assert [block.attn.attn_drop.p for block in head.post_network] == [0.5, 0.5]
    first, second = head.attended(x), head.attended(x)
    assert not torch.equal(first[:, 0], second[:, 0])
    head.eval()
    assert torch.equal(head.attended(x), head.attended(x))
