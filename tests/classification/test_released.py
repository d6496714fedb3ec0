"""A released classifier is loaded whole, head included, or is refused."""

import argparse

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner, load_checkpoint

from mmattn.weights import CheckpointError
from mmguard.runs.resuming import CheckpointCheckHook
from projects.mmguard.tests.runs.small_training import Better
from tests.configs import named

pytest.importorskip('mmpretrain')

TINY = 'elsa_swin_tiny_imagenet'


SMALL = dict(
    type='ImageClassifier',
    backbone=dict(
        type='ELSASwin',
        arch=dict(embed_dim=8, depths=(1, 1), num_heads=(1, 2), group_width=4),
        elsa_stages=(0,),
        out_indices=(1,),
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=16),
)


def build(config):
    """The classifier of a config, without the time of initialising it."""
    cfg = named(f'{config}_in1k')
    with DefaultScope.overwrite_default_scope('mmpretrain'), torch.device('meta'):
        return MODELS.build(cfg.model).to_empty(device='cpu')


def load(model, contents, folder):
    torch.save(contents, folder / 'released.pth')
    load_checkpoint(model, str(folder / 'released.pth'), strict=True)
    return model.state_dict()


def prefixed(weights):
    return {f'module.{name}': value for name, value in weights.items()}


@pytest.mark.parametrize(
    'config, layout, wrap, head',
    [
        (
            'elsa-swin-t',
            TINY,
            lambda w: {'state_dict': prefixed(w), 'epoch': 300, 'arch': 'elsa'},
            {'head': 'head.fc', 'norm': 'backbone.norm3'},
        ),
        pytest.param(
            'elsa-swin-b',
            'elsa_swin_base_imagenet',
            lambda w: {'state_dict_ema': w, 'epoch': 300},
            {'head': 'head.fc', 'norm': 'backbone.norm3'},
            marks=pytest.mark.slow,
        ),
        (
            'shunted-t',
            'shunted_t_imagenet',
            lambda w: {'model': w, 'optimizer': {}, 'epoch': 299},
            {'head': 'head.fc', 'norm4': 'backbone.norm4'},
        ),
        (
            'msf-vit-s-g2',
            'msf_vit_small_msf-g2_imagenet',
            lambda w: {'model': prefixed(w), 'lr_scheduler': {}, 'epoch': 99},
            {'linear_head.0': 'head.norm', 'linear_head.1': 'head.fc'},
        ),
        ('vit-s', 'msf_vit_small_orig_imagenet', dict, {'linear_head.1': 'head.fc'}),
    ],
)
def test_release_fills_the_classifier_of_its_config(tmp_path, release, config, layout, wrap, head):
    """Each with what its trainer keeps beside the weights. Not one tensor keeps its initial value."""
    model = build(config)
    for value in model.state_dict().values():
        value.fill_(-1)
    weights = release(layout)
    own = load(model, wrap(weights), tmp_path)
    assert all((value >= 0).all() for value in own.values())  # A release has positive values.
    for released, ours in head.items():
        assert all(torch.equal(own[f'{ours}.{kind}'], weights[f'{released}.{kind}']) for kind in ('weight', 'bias'))


def build_small():
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(SMALL)


def small_release(value):
    """A checkpoint of the small classifier, under the names of a release."""
    names, weights = {'backbone.norm1.': 'norm.', 'backbone.': '', 'head.fc.': 'head.'}, {}
    for name, tensor in build_small().state_dict().items():
        start = next(start for start in names if name.startswith(start))
        weights[names[start] + name.removeprefix(start)] = torch.full_like(tensor, value)
    return weights


def without(start):
    return lambda w: {name: value for name, value in w.items() if not name.startswith(start)}


@pytest.mark.parametrize(
    'change, message',
    [
        (without('head.'), r'those of ELSASwin without the head of a classifier, head\.fc\.\* or head\.\*'),
        (
            lambda w: {**w, 'head.weight': torch.ones(21841, 16), 'head.bias': torch.ones(21841)},
            r'head.fc.weight: copying a param with shape torch.Size\(\[21841, 16\]\)',
        ),
        (lambda w: {}, 'no tensor under "backbone."'),
    ],
    ids=['head', 'classes', 'empty'],
)
def test_what_does_not_fit_is_named(tmp_path, change, message):
    """A head that is missing or of other classes, and no tensors."""
    with pytest.raises(RuntimeError, match=message):
        load(build_small(), {'state_dict': change(small_release(0.5))}, tmp_path)


def test_own_classifier(tmp_path):
    """A classifier's own checkpoint, bare or in a container, is loaded as it is. Detectors start from it: they leave
    out its only norm, as that of a release."""
    model = build_small()
    for value in model.state_dict().values():
        torch.nn.init.constant_(value, 0.5)
    for contents in (model.state_dict(), {'model': prefixed(model.state_dict())}):
        own = load(build_small(), contents, tmp_path)
        assert all((value == 0.5).all() for value in own.values())
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'released.pth'))
    dense = MODELS.build({**SMALL['backbone'], 'out_indices': (0, 1), 'init_cfg': init_cfg})
    dense.init_weights()
    assert (dense.layers[1].blocks[0].norm2.weight == 0.5).all()
    assert (dense.norm0.weight == 1).all() and (dense.norm1.weight == 1).all()


class Images(BaseDataset):
    def load_data_list(self):
        return [{}]

    def prepare_data(self, index):
        from mmpretrain.structures import DataSample

        return dict(inputs=torch.zeros(3, 32, 32, dtype=torch.uint8), data_samples=DataSample().set_gt_label(0))


def run(folder, how, contents):
    """The weights after a training of one step with rate 0, or a test, that starts from a checkpoint."""
    torch.save(contents, folder / 'released.pth')
    loader = dict(batch_size=1, dataset=Images(), sampler=dict(type='DefaultSampler', shuffle=False))
    if how == 'test':
        parts = dict(test_dataloader=loader, test_evaluator=[Better()], test_cfg={})
    else:
        optimizer = dict(optimizer=dict(type='SGD', lr=0.0))
        parts = dict(train_dataloader=loader, train_cfg=dict(by_epoch=True, max_epochs=1), optim_wrapper=optimizer)
        parts['custom_hooks'] = [dict(type='EMAHook')]
    runner = Runner(
        model=SMALL,
        work_dir=str(folder),
        load_from=str(folder / 'released.pth'),
        default_scope='mmpretrain',
        experiment_name=f'{folder.name}_{how}',
        **parts,
    )
    runner.register_hook(CheckpointCheckHook(), 'HIGHEST')
    runner.test() if how == 'test' else runner.train()
    return runner.model.state_dict()


@pytest.mark.parametrize(
    'how, wrap',
    [
        ('test', lambda w: {'model': prefixed(w), 'args': argparse.Namespace(lr=1)}),
        # The first one is that of an average, which ELSA-Swin-B's authors evaluated.
        ('train', lambda w: {'state_dict': {name: value + 1 for name, value in w.items()}, 'state_dict_ema': w}),
    ],
    ids=['test', 'train'],
)
def test_runs_start_from_a_release(tmp_path, how, wrap):
    """As tools/train.py with load_from, averaging weights, and tools/test.py run it."""
    weights = run(tmp_path, how, wrap(small_release(0.25)))
    assert all((value == 0.25).all() for value in weights.values())


def test_tests_are_complete(tmp_path):
    """A test refuses a head of other classes, which a training leaves out, and one with a norm that the model lacks."""
    contents = {**small_release(0.25), 'head.weight': torch.ones(9, 16), 'head.bias': torch.ones(9)}
    with pytest.raises(CheckpointError, match='2 tensors that are not there, .* the first being head.fc.weight'):
        run(tmp_path, 'test', contents)
    with_norm = {**small_release(0.25), 'head.norm.weight': torch.ones(16)}
    with pytest.raises(CheckpointError, match='its head has 1 tensors that LinearClsHead does not use'):
        run(tmp_path, 'test', with_norm)
    weights = run(tmp_path, 'train', contents)
    assert (weights['backbone.norm1.weight'] == 0.25).all() and (weights['head.fc.weight'] != 1).all()
