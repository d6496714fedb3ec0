"""Grafting with tools/train.py as a user calls it. test_dist_and_resume.py interrupts such trainings."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmguard.runs.rows import read_row
from tests import ROOT
from tests.tools.in_process import dist_train, run_tool

#: four epochs of two steps, in half of which blocks learn
CONFIG = """
_base_ = '{root}/projects/distillation/configs/toy/graft.py'
data = dict(data_root='{folder}/photos', held_out=0.3)
train_dataloader = dict(batch_size=4, dataset=data)
val_dataloader = dict(batch_size=2, dataset=data)
default_hooks = dict(logger=dict(interval=1))
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A config of a short training, its images, one of which is broken, and the weights of its source."""
    rng = np.random.default_rng(0)
    (tmp_path / 'photos').mkdir()
    for index in range(12):
        colours = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / 'photos' / f'{index}.png'), cv2.resize(colours, (60 + index, 50)))
    (tmp_path / 'photos' / 'broken.jpg').write_bytes(b'no image')
    torch.manual_seed(0)
    models = Config.fromfile(ROOT / 'projects/lab/configs/toy' / '_base_' / 'starts.py').models
    weights = MODELS.build(models.swin[1]).state_dict()
    (tmp_path / 'starts' / 'swin').mkdir(parents=True)
    torch.save(
        {'state_dict': {f'backbone.{name}': value for name, value in weights.items()}},
        tmp_path / 'starts' / 'swin' / 'iter_600.pth',
    )
    (tmp_path / 'short.py').write_text(CONFIG.format(root=ROOT, folder=tmp_path))
    monkeypatch.setenv('MMATTN_STARTS', str(tmp_path / 'starts'))
    return tmp_path / 'short.py'


@pytest.mark.slow
def test_training(config, tmp_path):
    """A training first has a loss for each exchanged block, then those of the whole backbone. It leaves the state at
    the end of both parts. What comes out is loaded strictly by the backbone, by a detector and by a segmentor. The
    sheet has a plan for it."""
    done = run_tool('train', config, '--work-dir', tmp_path / 'work')
    assert done.returncode == 0, done.stdout + done.stderr
    work = tmp_path / 'work'
    names = {'epoch_2.pth', 'epoch_4.pth', *(f'backbone_epoch_{epoch}.pth' for epoch in (2, 3, 4))}
    assert {path.name for path in work.glob('*.pth')} == names
    (log,) = work.glob('*/*.log')
    assert 'broken.jpg' in log.read_text()
    (scalars,) = work.glob('*/vis_data/scalars.json')
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    steps, tests = ([line for line in lines if ('loss' in line) == training] for training in (True, False))
    blocks = [f'layers.{i}.blocks.{j}' for i, depth in enumerate((2, 2, 2, 1)) for j in range(depth)]
    for number, step in enumerate(steps):
        parts = blocks if number < len(steps) / 2 else ['stage3', 'global']
        assert {key for key in step if key.startswith('loss_')} == {f'loss_{part}' for part in parts}
    assert all({*(f'error/{block}' for block in blocks), 'similarity/stage3'} < set(test) for test in tests)

    cfg = Config.fromfile(config)
    file = torch.load(work / 'backbone_epoch_4.pth', weights_only=False)
    start = dict(type='Pretrained', checkpoint=str(work / 'backbone_epoch_4.pth'))
    backbone = MODELS.build(dict(cfg.model.backbone, init_cfg=start))
    backbone.init_weights()
    assert all(torch.equal(value, file['state_dict'][key]) for key, value in backbone.state_dict().items())
    for task in ('retinanet_fpn_coco', 'fpn_ade20k'):
        cfg_of_task = read_row(ROOT / 'projects/lab/configs/toy' / 'compare' / f'{task}.py', 'swin')
        cfg_of_task.model.backbone = dict(cfg.model.backbone, out_indices=(0, 1, 2, 3), init_cfg=start)
        with DefaultScope.overwrite_default_scope(cfg_of_task.default_scope):
            model = MODELS.build(cfg_of_task.model)
        model.init_weights()
        own = model.backbone.state_dict()
        # The norm of a single map is a classifier's, which detectors and segmentors leave out.
        weights = {key: value for key, value in file['state_dict'].items() if not key.startswith('norm')}
        assert all(torch.equal(own[key], value) for key, value in weights.items())

    done = run_tool(
        'analyze', config, work / 'epoch_2.pth', '--images', tmp_path / 'photos' / '0.png', '--what', 'grafting',
        'distillation', '--budget', '0.0165', '--out', tmp_path / 'seen', '--device', 'cpu',
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'keeps the budget' in done.stdout and 'attention = [[{' in done.stdout
    numbers = json.loads((tmp_path / 'seen' / 'grafting.json').read_text())
    assert [each['blocks'] for each in numbers['exchanges']] == [[block] for block in blocks]
    assert len(numbers['plan']['blocks']) == numbers['plan']['steps'] > 0
    assert cv2.imread(str(tmp_path / 'seen' / 'grafting.png')).size
    assert (tmp_path / 'seen' / '0_distillation.png').is_file()


@pytest.mark.slow
def test_two_processes_are_one(config, tmp_path):
    """Two processes have, after both parts, the weights and statistics of one that has both batches."""
    fixed = tmp_path / 'fixed.py'
    fixed.write_text("""
_base_ = './short.py'
pipeline = _base_.test_pipeline
train_dataloader = dict(
    batch_sampler=None, drop_last=True, sampler=dict(shuffle=False), dataset=dict(pipeline=pipeline))
val_dataloader = val_cfg = val_evaluator = None
custom_hooks = _base_.custom_hooks
custom_hooks.pop(2)  # pictures of a validation
default_hooks = dict(checkpoint=dict(interval=1))
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=1e-2))
""")
    for processes in (1, 2):
        options = '--cfg-options', f'train_dataloader.batch_size={4 // processes}'
        done = dist_train(fixed, processes, '--work-dir', tmp_path / str(processes), *options)
        assert done.returncode == 0, done.stdout + done.stderr
    for epoch in (2, 4):
        one, two = (
            torch.load(tmp_path / str(each) / f'epoch_{epoch}.pth', weights_only=False)['state_dict'] for each in (1, 2)
        )
        assert one.keys() == two.keys()
        for key, value in one.items():
            torch.testing.assert_close(
                two[key], value, atol=2e-5, rtol=1e-3, msg=lambda message, key=(epoch, key): f'{key}: {message}'
            )
