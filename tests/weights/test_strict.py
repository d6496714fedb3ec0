"""Strict loading, with ELSA-Swin's releases."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import load_checkpoint

from mmattn.backbones import ELSASwin, ViTFrame
from mmattn.weights import CheckpointError, StrictModule, Translation
from mmguard.checks.channels import check_channels
from tests.backbones.test_elsa_swin import as_released

TINY = 'elsa_swin_tiny_imagenet'
#: the tensors of ELSA-Swin-T with fewer channels
SMALL = dict(embed_dim=8, depths=(2, 2, 6, 2), num_heads=(1, 2, 4, 8), group_width=4)


def pretrained(path, arch=SMALL, **settings) -> ELSASwin:
    backbone = ELSASwin(arch, init_cfg=dict(type='Pretrained', checkpoint=str(path)), **settings)
    backbone.init_weights()
    return backbone


@pytest.fixture
def small(release):
    """Makes a checkpoint with the names of a released one of ELSA-Swin-T and the shapes of SMALL."""
    shapes = {name: tensor.shape for name, tensor in as_released(ELSASwin(SMALL).state_dict()).items()}
    shapes |= {'norm.weight': (64,), 'norm.bias': (64,), 'head.weight': (10, 64), 'head.bias': (10,)}
    return lambda name=TINY: release(name, shapes)


def save(tmp_path, contents):
    torch.save(contents, tmp_path / 'c.pth')
    return tmp_path / 'c.pth'


def drop(weights, name):
    return {k: v for k, v in weights.items() if k != name}


@pytest.mark.parametrize(
    'change, message',
    [
        (
            lambda w: drop(w, 'layers.1.downsample.reduction.weight'),
            'Tensors 1 missing: layers.1.downsample.reduction.weight$',
        ),
        (lambda w: {**w, 'layers.0.extra': torch.ones(1)}, 'Tensors 1 not used: layers.0.extra$'),
        (
            lambda w: {**w, 'patch_embed.proj.weight': torch.ones(8, 3, 2, 2)},
            r'1 of another shape: patch_embed.proj.weight \(8, 3, 2, 2\) instead of \(8, 3, 4, 4\)$',
        ),
        (lambda w: {**w, 'norm0.weight': torch.ones(8)}, '7 missing: norm0.bias'),
    ],
)
def test_one_wrong_tensor_stops(tmp_path, small, change, message):
    """One missing, unknown or misshapen tensor is refused by name; so is a release with some output norms."""
    with pytest.raises(CheckpointError, match=message) as error:
        pretrained(save(tmp_path, change(small())))
    assert str(tmp_path) in str(error.value)


def test_wrong_arch_is_guessed(tmp_path, release):
    """Also where an argument, not the arch, is another one."""
    weights = save(tmp_path, release(TINY))
    for settings in (dict(arch='base'), dict(arch='tiny', gamma=0)):
        with pytest.raises(CheckpointError, match=r"those of ELSASwin\(arch='tiny'\) with its default arguments"):
            ELSASwin(**settings).load_pretrained(weights)


@pytest.mark.parametrize(
    'name, guess',
    [
        ('layers.0.blocks.0.attn.relative_position_bias_table', 'a Swin Transformer'),
        ('block1.0.attn.sr.weight', 'Pyramid Vision'),
        ('transformer.layers.0.0.to_qkvp.weight', 'mean-shift'),
        ('blocks.0.attn.qkv.weight', 'a ViT'),
        ('layer1.0.conv1.weight', 'a ResNet'),
        ('stages.0.blocks.0.conv_dw.weight', 'a ConvNeXt'),  # timm's
        ('levels.0.blocks.0.attn.rpb', 'a NAT'),
        ('layers.0.blocks.0.attn.logit_scale', 'a Swin Transformer V2'),
        ('blocks.0.gamma_1', 'a ViT with LayerScale'),  # DINOv3's in timm
        ('encoder.layers.encoder_layer_0.self_attention.in_proj_weight', 'a ViT of torchvision'),
        ('encoder.layer.0.attention.attention.query.weight', "Hugging Face's transformers"),
        ('fc.weight', 'another model'),
    ],
)
def test_foreign_models_are_guessed(tmp_path, monkeypatch, name, guess):
    """The sentence says what the weights look like, also where a part of another model's was asked for."""
    monkeypatch.setattr('mmattn.weights.strict._variants', lambda _: ())  # They take a second to build.
    file = save(tmp_path, {name: torch.ones(1)})
    backbone = ELSASwin(SMALL)
    for warm_start in (False, True):
        with pytest.raises(CheckpointError, match=guess):
            backbone.load_pretrained(file, warm_start=warm_start)


def test_warm_start_of_another_size(tmp_path, monkeypatch):
    """Where the first tensor is of another shape, the sentence says what the weights are, too."""
    names = 'patch_embed.proj.weight', 'stages.0.blocks.0.mlp.dwconv.weight'
    weights = {name: torch.ones(3, 3, 7, 7) for name in names}
    monkeypatch.setattr('mmattn.weights.strict._variants', lambda _: ())  # They take seconds to build.
    with pytest.raises(CheckpointError, match=r'another shape: patch_embed.*look like a Pyramid Vision Transformer'):
        ViTFrame(dict(embed_dim=16, depth=1, num_heads=1)).load_pretrained(save(tmp_path, weights), warm_start=True)


def test_prefix_is_guessed(tmp_path, small):
    """Weights of the backbone under a name that is not known: the sentence names the prefix to give, which works."""
    path = save(tmp_path, {f'student.encoder.{k}': v for k, v in small('elsa_swin_tiny_dense_backbone').items()})
    with pytest.raises(CheckpointError, match='they are under "student.encoder.": give this as prefix'):
        pretrained(path)
    ELSASwin(SMALL).load_pretrained(path, prefix='student.encoder')
    path = save(tmp_path, {f'student.{k}': v for k, v in {'blocks.0.attn.qkv.weight': torch.ones(1)}.items()})
    with pytest.raises(CheckpointError, match='they look like a ViT or DeiT'):
        pretrained(path)


@pytest.mark.parametrize(
    'value, message',
    [
        (torch.ones(8).char(), r'1 of another kind: norm0.weight \(int8 for float32\)'),
        (torch.full((8,), 1e300, dtype=torch.float64), r'norm0.weight \(float64 for float32, with values beyond'),
        (torch.ones(8).to_sparse(), r'1 no ordinary tensors: norm0.weight \(sparse or nested\)'),
        (None, r'norm0.weight \(of type NoneType, not a tensor\)'),
    ],
    ids=['int8', 'range', 'sparse', 'none'],
)
@pytest.mark.parametrize('whole', [False, True])
def test_numbers_are_copied_or_refused(small, log, value, message, whole):
    """torch would cast them, or MMEngine go on without them. strict=False takes the others."""
    weights = {**small('elsa_swin_tiny_dense_backbone'), 'norm0.weight': value}
    model = Detector() if whole else ELSASwin(SMALL)
    given = {f'backbone.{k}': v for k, v in weights.items()} if whole else weights
    with pytest.raises(CheckpointError, match=message):
        model.load_state_dict(given)
    model.load_state_dict(given, strict=False)
    backbone = model.backbone if whole else model
    assert torch.equal(backbone.norm0.weight, torch.ones(8))
    assert torch.equal(backbone.norm1.weight, weights['norm1.weight'])
    assert any('norm0.weight (' in line for line in log)


@pytest.mark.parametrize(
    'init_cfg, message',
    [
        (dict(checkpoint='x.pth'), 'must be a dict with a type'),
        ([dict(type='Kaiming', layer='Linear'), 3], 'must be a dict with a type, .*, not 3'),
        (dict(type='Pretrained', checkpoint='x.pth', prefix=3), 'prefix in init_cfg must be a text, not 3'),
        (dict(type='Pretrained', checkpoint='x.pth', warm_start='no'), 'warm_start in init_cfg must be True or False'),
        (dict(type='Pretrained', checkpoint=''), 'needs a checkpoint, a path or an address, not'),
        (dict(type='Pretrained', checkpoint='x.pth', warmstart=True), 'has no key warmstart: did you mean warm_start'),
        (dict(type='mmengine.model.weight_init.PretrainedInit', file='x.pth'), 'has no key file'),
        (
            dict(type='Normal', layer='Linear', override=dict(type='Pretrained', name='norm3', checkpoint='x.pth')),
            'override in init_cfg cannot load weights',
        ),
    ],
    ids=['no type', 'list', 'prefix', 'warm_start', 'no checkpoint', 'unknown key', 'by path', 'override'],
)
def test_mistakes_in_init_cfg(init_cfg, message):
    """They are found when the backbone is built, not after the data was read."""
    with pytest.raises(ValueError, match=message):
        ELSASwin(init_cfg=init_cfg)


def test_deleted_init_cfg():
    """A config with init_cfg=dict(_delete_=True) starts from scratch."""
    ELSASwin(init_cfg={}).init_weights()


def test_missing_weights_can_be_left_out():
    """Only a backbone that is to be trained can do without its checkpoint; tools that are given one cannot."""
    with pytest.raises(CheckpointError, match='no checkpoint none.pth.*, or set init_cfg=None to start from scratch'):
        ELSASwin(init_cfg=dict(type='Pretrained', checkpoint='none.pth')).init_weights()


class Detector(BaseModel):
    """Stands for a whole model: a backbone and something else."""

    def __init__(self, **settings):
        super().__init__()
        self.backbone = ELSASwin(SMALL, **settings)
        self.head = torch.nn.Linear(2, 2)

    def forward(self, inputs):
        return self.backbone(inputs)


def test_whole_released_models_load(tmp_path, small):
    """load_from of an mmdet 2.x or mmseg 0.x checkpoint fills the backbone, output norms included."""
    weights = {f'backbone.{k}': v for k, v in small('elsa_swin_tiny_dense_backbone').items()}
    model = Detector()
    weights['head.weight'] = torch.ones(2, 2)
    load_checkpoint(model, str(save(tmp_path, {'state_dict': weights, 'meta': {}})))
    for name, value in as_released(model.backbone.state_dict()).items():
        assert torch.equal(value, weights[f'backbone.{name}'])
    assert (model.head.weight == 1).all()


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda w: drop(w, 'backbone.norm3.bias'), '1 missing: norm3.bias'),
        (lambda w: {'head.weight': torch.ones(2, 2)}, 'has no tensor under "backbone."'),
        (lambda w: {k.removeprefix('backbone.'): v for k, v in w.items()}, 'not by load_from'),
    ],
)
def test_whole_models_are_strict_about_the_backbone(tmp_path, small, change, message):
    """MMEngine's own loader, which ignores what does not fit, stops at the backbone."""
    weights = {f'backbone.{k}': v for k, v in small('elsa_swin_tiny_dense_backbone').items()}
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(Detector(), str(save(tmp_path, {'state_dict': change(weights)})))


def test_not_strict_on_request(tmp_path, small, log):
    """strict=False takes what fits, and logs and returns the names of the rest; the next loading is strict again."""
    weights = {**drop(small(), 'patch_embed.proj.weight'), 'patch_embed.proj.bias': torch.ones(3)}
    backbone = ELSASwin(SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(save(tmp_path, weights)), strict=False))
    backbone.init_weights()
    assert torch.equal(backbone.layers[0].blocks[0].norm1.weight, weights['layers.0.blocks.0.norm1.weight'])
    assert '1 missing: patch_embed.proj.weight; 1 of another shape: patch_embed.proj.bias' in '\n'.join(log)
    assert backbone.load_state_dict(weights, strict=False).missing_keys == [
        f'patch_embed.proj.{k}' for k in ('weight', 'bias')
    ]
    with pytest.raises(CheckpointError):
        backbone.load_state_dict(weights)


def test_not_strict_in_a_whole_model(small, log):
    """strict=False of a whole model is obeyed; a warning names what the backbone does not get."""
    weights = {f'backbone.{k}': v for k, v in drop(small('elsa_swin_tiny_dense_backbone'), 'norm3.bias').items()}
    model = Detector()
    assert 'backbone.norm3.bias' in model.load_state_dict(weights, strict=False).missing_keys
    assert torch.equal(model.backbone.norm3.weight, weights['backbone.norm3.weight'])
    assert '1 missing: norm3.bias' in '\n'.join(log)
    with pytest.raises(CheckpointError, match='1 missing: norm3.bias'):
        model.load_state_dict(weights)


def test_weights_survive_other_init_cfgs(tmp_path, small):
    """In a list of init_cfgs, Pretrained has the last word; a second call does not load again."""
    weights = small()
    backbone = ELSASwin(
        SMALL,
        init_cfg=[
            dict(type='Pretrained', checkpoint=str(save(tmp_path, weights))),
            dict(type='Constant', layer='Linear', val=7.0),
        ],
    )
    backbone.init_weights()
    assert torch.equal(backbone.layers[0].blocks[0].mlp.fc1.weight, weights['layers.0.blocks.0.mlp.fc1.weight'])
    backbone.patch_embed.proj.weight.data.zero_()
    backbone.init_weights()
    assert (backbone.patch_embed.proj.weight == 0).all()


def test_trained_weights_do_not_need_those_they_started_from():
    """A trained model loads on a machine that has its config and its weights, and not the file that init_cfg names."""
    start = dict(type='Pretrained', checkpoint='not_here.pth')
    trained, model = ELSASwin(SMALL), torch.nn.Module()
    model.backbone = ELSASwin(SMALL, init_cfg=[dict(type='TruncNormal', layer='Linear'), start])
    model.load_state_dict({f'backbone.{name}': value for name, value in trained.state_dict().items()})
    for own, given in zip(model.backbone.state_dict().values(), trained.state_dict().values()):
        assert torch.equal(own, given)


@pytest.mark.parametrize('duplicate', [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_strict_about_themselves(tmp_path, small, duplicate):
    """A copied or pickled model, as EMA hooks make them, loads a release into itself and is as strict."""
    weights = {f'backbone.{name}': value for name, value in small('elsa_swin_tiny_dense_backbone').items()}
    weights.update({'head.weight': torch.ones(2, 2), 'head.bias': torch.ones(2)})
    original = Detector()
    model = duplicate(original)
    model.load_state_dict(weights)
    assert torch.equal(model.backbone.norm0.weight, weights['backbone.norm0.weight'])
    assert torch.equal(original.backbone.norm0.weight, torch.ones(8))
    with pytest.raises(CheckpointError, match='1 missing: norm3.bias'):
        duplicate(model).load_state_dict(drop(weights, 'backbone.norm3.bias'))


def read(state_dict, model, warm_start):
    return Translation({name.replace('fc.', 'linear.'): value for name, value in state_dict.items()})


class Layer(StrictModule):
    """No backbone; its releases have other names."""

    weights = SimpleNamespace(read=read)

    def __init__(self, init_cfg=None):
        super().__init__(init_cfg)
        self.linear = torch.nn.Linear(2, 2)


def test_modules_that_are_no_backbones(tmp_path):
    """They load a release strictly, too, and a model's config may have one without channels as its backbone."""
    weights = {'fc.weight': torch.ones(2, 2), 'fc.bias': torch.ones(2)}
    layer = Layer(dict(type='Pretrained', checkpoint=str(save(tmp_path, weights))))
    layer.init_weights()
    assert torch.equal(layer.linear.bias, weights['fc.bias'])
    with pytest.raises(
        CheckpointError, match='fit Layer: they look like another model. Tensors 1 missing: linear.bias$'
    ):
        layer.load_state_dict(drop(weights, 'fc.bias'))
    check_channels(dict(backbone=dict(type=Layer)), 'model')
