"""Layer-wise decay of the learning rate."""

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmpretrain.models.backbones import SwinTransformer
from torch import nn

import mmattn  # noqa: F401, registers the constructor
from mmattn.backbones import ELSASwin
from mmattn.errors import InputError
from tests import ROOT
from tests.backbones.cases import every_backbone

CONSTRUCTOR = 'LayerDecayOptimWrapperConstructor'
TOY = ROOT / 'projects/lab/configs/toy'
RULES = dict(layer_decay_rate=0.5, norm_decay_mult=0.0, custom_keys={'.fc1': dict(decay_mult=0.1)})


def groups(model, scope, constructor=CONSTRUCTOR, **paramwise_cfg):
    """The groups of the optimizer by the names of their parameters."""
    optimizer = dict(type='AdamW', lr=1.0, weight_decay=0.2)
    config = dict(optimizer=optimizer, constructor=constructor, paramwise_cfg=paramwise_cfg)
    with DefaultScope.overwrite_default_scope(scope):
        wrapper = build_optim_wrapper(model, config)
    by_parameter = {parameter: group for group in wrapper.param_groups for parameter in group['params']}
    return {name: by_parameter[parameter] for name, parameter in model.named_parameters() if parameter in by_parameter}


def build(name, scope):
    with torch.device('meta'), DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(Config.fromfile(TOY / f'{name}.py').model)


@every_backbone
def test_classifiers_get_the_rates_of_mmpretrain(case):
    """Our constructor and MMPretrain's give each parameter of a classifier the same rate and weight decay."""
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmpretrain'):
        backbone = case.config(case.small, frozen_stages=0)
        model = MODELS.build(
            dict(
                type='ImageClassifier', backbone=backbone, head=dict(type='LinearClsHead', num_classes=2, in_channels=8)
            )
        )
    ours = groups(model, 'mmpretrain', **RULES)
    theirs = groups(model, 'mmpretrain', 'LearningRateDecayOptimWrapperConstructor', **RULES)
    assert ours.keys() == theirs.keys() < dict(model.named_parameters()).keys()
    for name, group in ours.items():
        assert (group['lr'], group['weight_decay']) == (theirs[name]['lr'], theirs[name]['weight_decay']), name
    assert len({group['lr'] for group in ours.values()}) > 4


@pytest.mark.parametrize('name, scope', [('mask-rcnn_elsa-swin-toy_fpn', 'mmdet'), ('shunted-toy_fpn', 'mmseg')])
def test_detectors_and_segmentors(name, scope):
    """Heads have the full learning rate, each block half of the next one's. lr_mult of custom_keys multiplies it."""
    model = build(name, scope)
    found = groups(model, scope, **RULES)
    blocks = [key for key, module in model.backbone.named_modules() if hasattr(module, 'is_block')]
    for i, block in enumerate(reversed(blocks), start=1):
        assert found[f'backbone.{block}.norm1.weight']['lr'] == 0.5**i
    assert {group['lr'] for key, group in found.items() if not key.startswith('backbone.')} == {1.0}
    first = f'backbone.{blocks[0]}.mlp.fc1.weight'
    assert found[first]['weight_decay'] == pytest.approx(0.02)
    keys = {'.fc1': dict(lr_mult=10.0)}
    assert groups(model, scope, layer_decay_rate=0.5, custom_keys=keys)[first]['lr'] == 10 * found[first]['lr']


def test_depths_are_those_of_swin():
    """MMPretrain's Swin has the same depths, patch merging and norms included."""
    depths, heads = [2, 2, 6, 2], [1, 2, 4, 8]
    swin = SwinTransformer(dict(embed_dims=8, depths=depths, num_heads=heads))
    backbone = ELSASwin(dict(embed_dim=8, depths=depths, num_heads=heads, group_width=4))
    for name, _ in backbone.named_parameters():
        assert backbone.get_layer_depth(name) == swin.get_layer_depth(name.replace('layers.', 'stages.')), name


def test_wrapped_models():
    """Wrappers around the model, the backbone or its blocks change no learning rate."""
    model = build('mask-rcnn_elsa-swin-toy_fpn', 'mmdet')
    rates = [group['lr'] for group in groups(model, 'mmdet', **RULES).values()]

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.module, name)

    for stage in model.backbone.layers:
        stage.blocks = nn.ModuleList(Wrapper(block) for block in stage.blocks)
    model.backbone = Wrapper(model.backbone)
    wrapped = Wrapper(model)
    assert [group['lr'] for group in groups(wrapped, 'mmdet', **RULES).values()] == rates


@pytest.mark.parametrize(
    'rules, message',
    [
        (dict(layer_decay_rate=0.009), 'layer_decay_rate .* must be from 0.01 to 1, not 0.009; frozen_stages'),
        (dict(norm_decay_mult=0.0), 'layer_decay_rate .* must be from 0.01 to 1, not None'),
        (dict(decay_rate=0.9), 'has no key decay_rate: did you mean layer_decay_rate'),
        (dict(layer_decay_rate=0.9), 'needs a backbone with a method get_layer_depth, and Linear has none'),
    ],
)
def test_mistakes_are_named(rules, message):
    """Each mistake is refused with a sentence. MMEngine would ignore unknown keys."""
    model = nn.Module()
    model.backbone = nn.Linear(1, 1)
    with pytest.raises(InputError, match=message):
        groups(model, 'mmengine', **rules)
