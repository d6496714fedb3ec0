"""Our backbones in MMPretrain's LoRAModel."""

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from mmattn.errors import CheckpointError
from mmguard.runs.resuming import check_complete
from tests.backbones.cases import CASES

#: linear layers of attention and MLP; GSAResNet has none
TARGETS = {
    'ELSASwin': ['post_proj', 'attn.qkv', 'attn.proj', 'fc1', 'fc2'],
    'MSFSwin': ['pre_proj', 'post_proj', 'fc1', 'fc2'],
    'MSFViT': ['pre_proj', 'post_proj', 'fc1', 'fc2'],
    'NAT': ['attn.qkv', 'attn.proj', 'fc1', 'fc2'],
    'ShuntedTransformer': ['attn.q', r'.*attn.kv\d', 'attn.qkv', 'attn.proj', 'fc1', 'fc2'],
    'TransNeXt': ['attn.q', 'attn.kv', 'attn.qkv', 'attn.proj', 'fc1', 'fc2'],
}
every_target = pytest.mark.parametrize('name', TARGETS)


def build(name, pretrained=None, **settings):
    """A classifier whose backbone is wrapped in LoRAModel."""
    case = CASES[name]
    settings = dict(settings, norm_eval=True) if case.batch_norm else settings
    init_cfg = pretrained and dict(type='Pretrained', checkpoint=str(pretrained))
    backbone = dict(
        type='LoRAModel',
        module=case.config(case.small, drop_path_rate=0.0, init_cfg=init_cfg, **settings),
        alpha=8,
        rank=2,
        targets=[dict(type=target) for target in TARGETS[name]],
    )
    channels = case.build(case.small).out_channels[-1]
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        head = dict(type='LinearClsHead', num_classes=3, in_channels=channels)
        model = MODELS.build(
            dict(type='ImageClassifier', backbone=backbone, neck=dict(type='GlobalAveragePooling'), head=head)
        )
        model.init_weights()
    return model.train()


@pytest.fixture
def pretrained(tmp_path, name):
    """A checkpoint of the backbone alone."""
    case = CASES[name]
    torch.save(case.build(case.small).state_dict(), tmp_path / 'pretrained.pth')
    return tmp_path / 'pretrained.pth'


def train(model, steps=2):
    """Train for some steps with a fixed seed. The first step changes only one of the two matrices of LoRA."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), 0.01, eps=1e-30)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 64, 64)).square().sum().backward()
        optimizer.step()


@every_target
def test_trains_saves_and_loads(name, pretrained, tmp_path):
    """Only LoRA's matrices and the head are trained and saved. A second model with the same pretrained weights loads
    them and predicts the same."""
    model = build(name, pretrained)
    given = torch.load(pretrained)
    before = {key: value.clone() for key, value in model.named_parameters()}
    train(model)
    for key, value in model.named_parameters():
        trained = '.lora_' in key or key.startswith('head.')
        assert (value.grad is not None) == trained == (not torch.equal(value, before[key])), key
        if key.startswith('backbone.') and not trained:
            assert torch.equal(value, given[key.removeprefix('backbone.module.').replace('.original_layer', '')]), key
    torch.save(model.state_dict(), tmp_path / 'trained.pth')
    saved = torch.load(tmp_path / 'trained.pth')
    assert all('.lora_' in key or key.startswith('head.') for key in saved)
    other = build(name, pretrained)
    check_complete(saved, other, 'trained.pth')
    other.load_state_dict(saved)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(other.eval()(x), model.eval()(x))
    missing = next(key for key in saved if '.lora_' in key)
    del saved[missing]
    with pytest.raises(CheckpointError, match=rf'1 missing: {missing.removeprefix("backbone.module.")}$'):
        build(name, pretrained).load_state_dict(saved)


@every_target
def test_recomputed_activations(name):
    """with_cp changes no gradient, although the image and the frozen weights have no gradients."""
    grads = []
    for with_cp in (False, True):
        torch.manual_seed(1)
        model = build(name, with_cp=with_cp)
        train(model, 1)
        grads.append([p.grad for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(*grads)
