"""tools/train.py and tools/test.py with input that is broken, hostile or odd, as mmguard's docs/robustness.md lists it.

The tools run in this process, except in test_process_of_its_own.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch

from tests import ROOT
from tests.tools.in_process import NO_WORKERS, run_tool

MASK_RCNN = 'projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn.py'
SEMANTIC_FPN = 'projects/lab/configs/toy/shunted-toy_fpn.py'
#: of each, a training of two steps and a validation, without workers
SHORT = {
    MASK_RCNN: ['train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'model.test_cfg.rcnn.score_thr=0.'],
    SEMANTIC_FPN: ['train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'model.test_cfg.mode=whole'],
}


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
    root = tmp_path_factory.mktemp('hostile') / 'toy'
    assert run_tool('make_toy_data', root, '--train', 4, '--val', 1).returncode == 0
    return root


@pytest.fixture
def data(toy, tmp_path, monkeypatch):
    """A copy of the toy data, to be damaged."""
    root = tmp_path / 'data'
    shutil.copytree(toy, root)
    monkeypatch.setenv('COCO_ROOT', f'{root}/coco/')
    monkeypatch.setenv('ADE20K_ROOT', f'{root}/ADEChallengeData2016')
    return root


@pytest.fixture
def run(data, tmp_path):
    """Run a tool. Returns the sentence that ends it, None if all went well; an error is raised as it is."""

    def run(tool: str, config: str, *arguments: str, options: list[str] = ()) -> str | None:
        options = ['train_dataloader.batch_size=2', *NO_WORKERS, *SHORT[config], *options]
        done = run_tool(tool, config, *arguments, '--work-dir', tmp_path / 'work', '--cfg-options', *options)
        assert done.sentence is None or not list((tmp_path / 'work').rglob('*.pth'))
        return done.sentence

    return run


def annotations(data, split='train'):
    return data / 'coco' / 'annotations' / f'instances_{split}2017.json'


class Code:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), 'w')


@pytest.mark.parametrize('how', ['load_from', 'resume', 'test'])
def test_code_in_checkpoints_is_not_run(run, tmp_path, how):
    """MMEngine would run it in each of these cases. The work folder has no checkpoint afterwards."""
    path = tmp_path / 'evil.pth'
    torch.save({'state_dict': {'a': torch.ones(1)}, 'meta': Code(tmp_path / 'proof')}, path)
    message = {
        'load_from': lambda: run('train', MASK_RCNN, options=[f'load_from={path}']),
        'resume': lambda: run('train', MASK_RCNN, '--resume', path),
        'test': lambda: run('test', MASK_RCNN, path),
    }[how]()
    assert 'code in a file is not run' in message and str(path) in message and '--trust-checkpoint' in message
    assert not (tmp_path / 'proof').exists()


def edited(change, split='train'):
    """A function that changes the annotations."""

    def damage(data):
        contents = json.loads(annotations(data, split).read_text())
        change(contents)
        annotations(data, split).write_text(json.dumps(contents))

    return damage


@pytest.mark.slow
@pytest.mark.parametrize(
    'config, options', [(MASK_RCNN, ['train_dataloader.dataset.filter_cfg.filter_empty_gt=False']), (SEMANTIC_FPN, [])]
)
def test_empty_ground_truth_is_learned_from(run, data, tmp_path, config, options):
    """Images without an object, and label maps that are ignored everywhere, give finite losses at every step."""
    edited(lambda contents: contents['annotations'].clear())(data)
    maps = sorted((data / 'ADEChallengeData2016' / 'annotations' / 'training').iterdir())
    for path in maps[:-1]:  # without any label, the training is refused
        cv2.imwrite(str(path), 0 * cv2.imread(str(path), 0))
    assert run('train', config, options=[*options, 'default_hooks.logger.interval=1']) is None
    (file,) = (tmp_path / 'work').glob('*/vis_data/scalars.json')
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    losses = [value for step in steps for name, value in step.items() if 'loss' in name]
    assert len([step for step in steps if 'loss' in step]) == 2 and np.isfinite(losses).all()


@pytest.mark.parametrize(
    'config, option, message',
    [
        (MASK_RCNN, 'optim_wrapper.optimizer.lrr=1', 'has no argument lrr: did you mean lr?'),
        (SEMANTIC_FPN, 'model.decode_head.in_channels=7', 'in_channels is 7, but in_index is [0, 1, 2, 3]'),
    ],
)
def test_mistakes_in_configs(run, tmp_path, config, option, message):
    """The sentence names the place in the config and the known names like it. Nothing is written."""
    assert message in run('train', config, options=[option])
    assert not (tmp_path / 'work').exists()


@pytest.mark.slow
def test_process_of_its_own(data, tmp_path):
    """When a worker of the dataloader finds an image that is cut short, one sentence ends stderr and the exit status is
    1."""
    folder = data / 'ADEChallengeData2016' / 'images' / 'training'
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    options = ['train_dataloader.num_workers=1', 'train_dataloader.batch_size=4']
    done = subprocess.run(
        [sys.executable, 'tools/train.py', SEMANTIC_FPN, '--work-dir', tmp_path / 'work', '--cfg-options', *options],
        cwd=ROOT,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES=''),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert re.match(rf'{folder}/\d+\.jpg cannot be used: ', done.stderr.splitlines()[-1])


def broken(*_, **__):
    raise ValueError('a mistake of ours')


@pytest.mark.parametrize(
    'place',
    [
        'mmengine.runner.Runner.from_cfg',
        'mmattn.backbones.ShuntedTransformer.forward',
        'mmseg.datasets.transforms.PackSegInputs.transform',
    ],
)
def test_mistakes_of_ours_keep_their_traceback(run, data, monkeypatch, place):
    """Whatever raises it and whenever, an error that is not an InputError is raised as it is."""
    monkeypatch.setattr(place, broken)
    with pytest.raises(ValueError, match='^a mistake of ours$') as error:
        run('train', SEMANTIC_FPN)
    assert type(error.value) is ValueError
