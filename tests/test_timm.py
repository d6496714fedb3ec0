"""timm's names for the backbones.

The first part is timm's own tests of models and of freezing, with its names, adapted to ours: the models, and smaller
images. These of timm's tests do not pass, or do not apply:

- test_model_inference, test_model_load_pretrained, test_model_features_pretrained: we publish no weights.
- test_model_default_cfgs_non_std: all maps are (B, C, H, W), so test_model_default_cfgs tests all models.
- test_model_forward_intermediates_features: our features_only is the form that it tests, so it is
  test_model_forward_features.
- test_model_forward_torchscript: our operators and the choice between them are Python, which TorchScript does not
  compile. torch.compile, torch.export and ONNX work.
- test_model_forward_fx, test_model_backward_fx, test_model_forward_fx_torchscript,
  test_model_forward_torchscript_with_features_fx: a symbolic trace has no sizes, and ours are checked and padded.
"""

import functools
import math

import huggingface_hub.constants
import pytest
import timm
import torch
from mmengine.registry import MODELS, DefaultScope
from timm.models import group_modules, group_parameters
from timm.utils.model import freeze, unfreeze
from torch import nn
from torchvision.ops.misc import FrozenBatchNorm2d

import mmattn.timm
from mmattn.errors import InputError
from mmattn.timm import TimmClassifier
from mmattn.weights import CheckpointError
from mmattn.weights.sources import place_of
from tests.backbones.cases import CASES
from tests.configs import named

VARIANTS = mmattn.timm.variants()
#: the smallest variant of each family, which `make test` tests with fewer blocks and channels
FAST = ['elsa_swin_tiny', 'elsa_volo_d1', 'gsa_resnet38', 'msf_swin_tiny', 'msf_vit_tiny', 'nat_mini', 'shunted_tiny']
every_model = pytest.mark.parametrize(
    'create_model',
    [pytest.param(lambda name=name, **arguments: small(name, **arguments), id=f'small-{name}') for name in FAST]
    + [pytest.param(functools.partial(timm.create_model, name), id=name, marks=pytest.mark.slow) for name in VARIANTS],
)


def small(name, **arguments):
    """A model with the small settings of its backbone's tests."""
    family, _ = VARIANTS[name]
    settings = {key: value for key, value in CASES[family.backbone.__name__].small.items() if key != 'out_indices'}
    settings[family.backbone.arch_argument] = settings.pop('arch')
    return timm.create_model(name, **{**settings, **arguments}).eval()


def images(batch=1, side=64, channels=3):
    return torch.randn(batch, channels, side, side)


@every_model
def test_model_forward(create_model):
    """Numbers come out, the same with checkpointing."""
    model = create_model().eval()
    inputs = images()
    outputs = model(inputs)
    assert outputs.shape == (1, 1000) and not outputs.isnan().any()
    model.set_grad_checkpointing()
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


@every_model
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


def test_freeze_unfreeze():
    """timm's functions freeze all, and parts by name, batch norms included."""
    model = timm.create_model('gsa_resnet38')
    norm = lambda: model.backbone.layer1[0].bn1
    conv = lambda stage, block=0: getattr(model.backbone, f'layer{stage}')[block].conv1.weight.requires_grad
    freeze(model)
    assert not model.head.fc.weight.requires_grad and not conv(1) and isinstance(norm(), FrozenBatchNorm2d)
    unfreeze(model)
    assert model.head.fc.weight.requires_grad and conv(1) and isinstance(norm(), nn.BatchNorm2d)
    freeze(model, ['backbone.layer1', 'backbone.layer2.0'])
    assert not conv(1) and isinstance(norm(), FrozenBatchNorm2d)
    assert not conv(2, 0) and conv(2, 1) and conv(3)
    unfreeze(model, ['backbone.layer1', 'backbone.layer2.0'])
    assert conv(1) and conv(2) and isinstance(norm(), nn.BatchNorm2d)


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
    assert model.num_features == wanted[-1].shape[1] and model(inputs).shape == wanted[-1].shape


def test_norms_of_intermediates():
    """The last map is normed on request, as that of forward_features, others are not."""
    model = small('elsa_swin_tiny')
    inputs = images()
    first, last = model.forward_intermediates(inputs, [0, 3], norm=True, intermediates_only=True)
    plain_first, plain_last = model.forward_intermediates(inputs, [0, 3], intermediates_only=True)
    assert torch.equal(last, model.forward_features(inputs)) and torch.equal(first, plain_first)
    normed = model.backbone.norm3(plain_last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert torch.equal(normed, last) and not torch.equal(plain_last, last)


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
    assert small('msf_vit_tiny', embedding='deit').no_weight_decay() == {'backbone.patch_embed.pos_embed'}


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


def test_checkpoints_of_trainings(tmp_path):
    """Those of MMPretrain and of a detector load, with the settings that they note; the scores are MMPretrain's."""
    pytest.importorskip('mmpretrain')
    import mmattn.classification  # noqa: F401, registers the head

    backbone = CASES['MSFViT'].config(CASES['MSFViT'].small, out_indices=None)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        trained = MODELS.build(
            dict(
                type='ImageClassifier',
                backbone=backbone,
                neck=dict(type='GlobalAveragePooling'),
                head=dict(type='NormLinearClsHead', num_classes=3, in_channels=16),
            )
        ).eval()
    file = saved({f'module.{name}': value for name, value in trained.state_dict().items()}, tmp_path)
    for arguments in (dict(checkpoint_path=file), dict(pretrained=True, pretrained_cfg_overlay=dict(file=file))):
        model = small('msf_vit_tiny', num_classes=3, **arguments)
        x = images()
        torch.testing.assert_close(model(x), trained(x), rtol=0, atol=0)
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
        ('elsa_swin_base', 'elsa-swin-b'),
        ('elsa_volo_d1', 'elsa-volo-d1'),
        ('elsa_volo_d5', 'elsa-volo-d5'),
        ('gsa_resnet50', 'gsa-r50'),
        ('msf_swin_tiny', 'msf-swin-t'),
        ('msf_vit_small', 'msf-vit-s'),
        ('nat_tiny', 'nat-t'),
        ('dinat_tiny', 'dinat-t'),
        ('dinat_large', 'dinat-l'),
        ('dinat_large_384', 'dinat-l_384'),
        ('shunted_tiny', 'shunted-t'),
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
    of_config = {key: ours.model.backbone.get(key) for key in family.settings if key != 'final_norm'}
    assert of_config == {key: value for key, value in family.settings.items() if key != 'final_norm'}


def test_folder_of_the_hub(tmp_path):
    """save_pretrained writes weights with settings, config.json and a card. from_pretrained, timm and init_cfg read
    them; other settings, no config, and no Hub are told in a sentence."""
    model = small('msf_vit_tiny', num_classes=3, norm_eps=1e-3)
    folder = tmp_path / 'mine'
    model.save_pretrained(folder, model_card_kwargs=dict(data='own photos, CC BY 4.0'))
    x = images()
    for again in (TimmClassifier.from_pretrained(folder), timm.create_model(f'local-dir:{folder}', pretrained=True)):
        assert torch.equal(again.eval()(x), model(x))
    card = (folder / 'README.md').read_text()
    assert '# msf_vit_tiny' in card and 'norm_eps=0.001' in card and 'own photos, CC BY 4.0' in card
    with pytest.raises(CheckpointError, match='were trained with norm_eps=0.001'):
        TimmClassifier.from_pretrained(folder, norm_eps=1e-5)
    (folder / 'config.json').write_text('{"architecture": "resnet50"}')
    with pytest.raises(CheckpointError, match='is of resnet50, which is no model of mmattn'):
        TimmClassifier.from_pretrained(folder)
    (folder / 'config.json').unlink()
    with pytest.raises(CheckpointError, match='mine has no config.json'):
        TimmClassifier.from_pretrained(folder)


def test_no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_CACHE', str(tmp_path))
    with pytest.raises(CheckpointError, match='OWNER/NAME/resolve/v1/config.json cannot be downloaded') as error:
        TimmClassifier.from_pretrained('OWNER/NAME', revision='v1')
    assert '\n' not in str(error.value)


def test_weights_of_timm_are_timms():
    """timm: names weights that timm publishes, also beside our names."""
    with pytest.raises(CheckpointError, match='has no model elsa_swin_tiny: download it in a browser'):
        place_of('timm:elsa_swin_tiny')
