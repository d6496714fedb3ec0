"""tools/train.py and dist_train.sh with two processes and when killed."""

import signal
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from mmguard.packages import version_numbers
from tests import ROOT
from tests.backbones.cases import CASES
from tests.tools.in_process import dist_train, run_tool

SHARDS = version_numbers(torch.__version__) >= (2, 6)
#: without random numbers and batch statistics, every run gives the same weights
SEGMENTOR = """
_base_ = '{root}/projects/lab/configs/toy/shunted-toy_fpn.py'
train_pipeline = [
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=False), dict(type='PackSegInputs')]
train_dataloader = dict(
    batch_size={batch_size}, num_workers={workers}, persistent_workers={workers} > 0,
    dataset=dict(pipeline=train_pipeline))
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(_delete_=True, type='mmattn.{name}', {settings}, drop_path_rate=0., frozen_stages={frozen},
                  with_cp={with_cp}),
    neck=dict(in_channels={channels}),
    decode_head=dict(norm_cfg=dict(type='GN', num_groups=1, _delete_=True)))
train_cfg = dict(max_iters={steps}, val_interval=100)
optim_wrapper = dict(optimizer=dict(_delete_=True, type='{optimizer}', lr=1e-2, weight_decay=0.01))
param_scheduler = [dict(type='PolyLR', power=1., eta_min=0., by_epoch=False, begin=0, end=10)]
default_hooks = dict(checkpoint=dict(interval=2))
randomness = dict(seed={seed})
val_dataloader = val_cfg = val_evaluator = None
"""

DETECTOR = """
_base_ = '{root}/projects/lab/configs/toy/retinanet_shunted-toy_fpn.py'
train_pipeline = [
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(64, 64), keep_ratio=False), dict(type='PackDetInputs')]
train_dataloader = dict(batch_size=4, dataset=dict(pipeline=train_pipeline))
train_cfg = dict(max_epochs=3, val_interval=100)
val_dataloader = val_cfg = val_evaluator = None
"""

#: draws random numbers in the pipeline, whose workers live for all epochs, in batches, and in the model
CLASSIFIER = """
_base_ = '{root}/projects/lab/configs/toy/elsa-swin-toy_in1k.py'
model = dict(
    backbone=dict(drop_path_rate=0.2),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
train_dataloader = dict(batch_size=20, persistent_workers=True, sampler=dict(type='RepeatAugSampler', shuffle=True))
custom_hooks = [dict(type='EMAHook', momentum=0.1)]
train_cfg = dict(max_epochs=3, val_interval=100)
val_dataloader = val_cfg = val_evaluator = None
"""
#: draws random numbers in the pipeline and in the model, in batches of two sizes
DISTILLATION = """
_base_ = '{root}/projects/distillation/configs/toy/distill.py'
model = dict(backbone=dict(drop_path_rate=0.2))
train_dataloader = dict(
    batch_size=16, num_workers=2, persistent_workers=True,
    batch_sampler=dict(sizes=[dict(size=(32, 32), share=0.5), dict(size=(32, 64), share=0.5)]),
    dataset=dict(held_out=0.2))
train_cfg = dict(max_epochs=3, val_interval=100)
val_dataloader = val_cfg = val_evaluator = None
"""
#: blocks learn in the first epoch, then the whole backbone: trainings resume where it begins, and later
GRAFT = """
_base_ = '{root}/projects/distillation/configs/toy/graft.py'
train_dataloader = dict(batch_size=16, num_workers=2, persistent_workers=True, dataset=dict(held_out=0.2))
train_cfg = dict(max_epochs=3, val_interval=100)
default_hooks = dict(checkpoint=dict(interval=1))
custom_hooks = [*_base_.custom_hooks[:-1], dict(type='WholeModelHook', begin=1)]
val_dataloader = val_cfg = val_evaluator = None
"""
#: config of a training by epochs -> its text
BY_EPOCHS = dict(detector=DETECTOR, classifier=CLASSIFIER, distillation=DISTILLATION, graft=GRAFT)


@pytest.fixture(scope='module')
def train(tmp_path_factory):
    """Train by a config; the finished process."""
    folder = tmp_path_factory.mktemp('data')
    environment = dict(
        COCO_ROOT=f'{folder}/toy/coco/',
        ADE20K_ROOT=f'{folder}/toy/ADEChallengeData2016',
        IMAGENET_ROOT=f'{folder}/toy/imagenet',
        MMATTN_IMAGES=f'{folder}/toy/imagenet/train',
        MMATTN_TEACHER=f'{folder}/teacher.pth',
        MMATTN_STARTS=f'{folder}/starts',
    )
    assert run_tool('make_toy_data', folder / 'toy', '--train', 8, '--val', 1).returncode == 0
    teacher = MODELS.build(Config.fromfile(ROOT / 'projects/lab/configs/toy' / '_base_' / 'teacher.py').teacher)
    torch.save(teacher.state_dict(), folder / 'teacher.pth')
    source = MODELS.build(Config.fromfile(ROOT / 'projects/lab/configs/toy' / '_base_' / 'starts.py').models.swin[1])
    (folder / 'starts' / 'swin').mkdir(parents=True)
    torch.save(source.state_dict(), folder / 'starts' / 'swin' / 'iter_600.pth')

    def train(config, work_dir, *arguments, processes=None):
        return dist_train(config, processes, '--work-dir', work_dir, *arguments, **environment)

    return train


def segmentor(
    folder, name='ELSASwin', batch_size=2, workers=0, frozen=-1, with_cp=False, steps=3, optimizer='SGD', seed=0
):
    config = folder / f'{name}_{batch_size}.py'
    case = CASES[name]
    settings = ', '.join(f'{key}={value!r}' for key, value in case.config(case.trained).items() if key != 'type')
    config.write_text(
        SEGMENTOR.format(
            root=ROOT,
            name=name,
            settings=settings,
            channels=list(case.build(case.trained).out_channels),
            batch_size=batch_size,
            workers=workers,
            frozen=frozen,
            with_cp=with_cp,
            steps=steps,
            optimizer=optimizer,
            seed=seed,
        )
    )
    return config


def weights(path):
    return torch.load(path, weights_only=False)['state_dict']


@pytest.mark.slow
@pytest.mark.parametrize('frozen, with_cp', [(-1, False), (1, True)])
@pytest.mark.parametrize('name', CASES)
def test_two_processes_are_one(train, tmp_path, name, frozen, with_cp):
    """dist_train.sh without a GPU: after three steps, two processes have the weights of one that has both batches.

    Three, as an unused parameter or gradients that are not averaged show after the first step only.
    """
    settings = dict(name=name, frozen=frozen, with_cp=with_cp)
    two = train(segmentor(tmp_path, batch_size=2, **settings), tmp_path / 'two', processes=2)
    assert two.returncode == 0 and 'processes talk through gloo' in two.stdout + two.stderr, two.stdout + two.stderr
    one = train(segmentor(tmp_path, batch_size=4, **settings), tmp_path / 'one')
    assert one.returncode == 0, one.stdout + one.stderr
    two, one = (weights(tmp_path / folder / 'iter_3.pth') for folder in ('two', 'one'))
    for key, value in one.items():
        torch.testing.assert_close(
            two[key], value, atol=1e-5, rtol=1e-4, msg=lambda message, key=key: f'{key}: {message}'
        )


#: a hook that does something to the process at the beginning of a step
HOOK = """
import os, resource, signal
from pathlib import Path
from mmguard.runs import checkpoints
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class Interruption(Hook):

    def __init__(self, step, kind):
        self.step, self.kind = step, kind

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter != self.step:
            return
        if self.kind == 'writing':  # killed by the kernel half-way through the next checkpoint
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        elif self.kind == 'full':  # the disk is full at the next checkpoint
            checkpoints.token_hex = lambda count: 'full'
            for name in (f'iter_{runner.iter + 1}.pth', f'epoch_{runner.epoch + 1}.pth'):
                part = Path(runner.work_dir, f'{name}.full.part')
                if 'strategy' in runner.cfg:
                    part = Path(runner.work_dir, f'{name}.part', f'__{runner.rank}_0.distcp')
                    part.parent.mkdir(exist_ok=True)
                part.symlink_to('/dev/full')
        else:
            os.kill(os.getpid(), getattr(signal, self.kind))
"""


def interrupted(config, step, kind):
    (config.parent / 'interruption.py').write_text(HOOK)
    path = config.with_name(f'interrupted_{config.name}')
    path.write_text(
        f"_base_ = './{config.name}'\n"
        "custom_imports = dict(imports=['interruption'])\n"
        f"custom_hooks = [*_base_.get('custom_hooks', []), dict(type='Interruption', step={step}, kind='{kind}')]\n"
    )
    return path


@pytest.fixture(scope='module', params=['steps', *BY_EPOCHS])
def whole(request, train, tmp_path_factory):
    """A config, and the weights at the end of a training by it."""
    folder = tmp_path_factory.mktemp(request.param)
    config = segmentor(folder, workers=2, steps=6, optimizer='AdamW')  # workers read ahead
    if request.param != 'steps':
        config = folder / f'{request.param}.py'
        config.write_text(BY_EPOCHS[request.param].format(root=ROOT))
    done = train(config, folder / 'work')
    assert done.returncode == 0, done.stdout + done.stderr
    return config, weights(folder / 'work' / (folder / 'work' / 'last_checkpoint').read_text())


def assert_resumed(train, work_dir, whole, start):
    """--resume starts from a checkpoint and ends with the weights of a training that was not interrupted."""
    config, expected = whole
    done = train(config, work_dir, '--resume')
    output = done.stdout + done.stderr
    assert done.returncode == 0 and f'Load checkpoint from {work_dir / start}' in output, output
    resumed = weights((work_dir / 'last_checkpoint').read_text())
    assert all(torch.equal(resumed[key], value) for key, value in expected.items())
    assert not list(work_dir.glob('*.part'))  # also what a killed training has left
    return output


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['SIGKILL', 'writing'])
def test_killed(train, whole, tmp_path, kind):
    """The training is killed in the sixth step, or while it writes the third checkpoint."""
    done = train(interrupted(whole[0], 5, kind), tmp_path)
    assert done.returncode == -getattr(signal, 'SIGXFSZ' if kind == 'writing' else kind), done.stdout + done.stderr
    name = 'iter_4.pth' if 'ELSASwin' in whole[0].name else 'epoch_2.pth'
    assert len(list(tmp_path.glob('*.part'))) == (kind == 'writing')
    assert_resumed(train, tmp_path, whole, name)


@pytest.mark.slow
def test_truncated_and_full(train, whole, tmp_path):
    """The disk is full at the second checkpoint, and later that one is truncated: the first is used both times."""
    steps = 'ELSASwin' in whole[0].name
    first, second = ('iter_2.pth', 'iter_4.pth') if steps else ('epoch_1.pth', 'epoch_2.pth')
    done = train(interrupted(whole[0], 3, 'full'), tmp_path)
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert f'{second} cannot be written (No space left on device)' in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.glob('[ei]*.pth')] == [first]  # a distillation has others beside it
    assert_resumed(train, tmp_path, whole, first)

    with (tmp_path / second).open('r+b') as file:
        file.truncate(10_000)
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / second))
    assert f'{second} cannot be read' in assert_resumed(train, tmp_path, whole, first)


@pytest.fixture(scope='module')
def sharded(train, tmp_path_factory):
    """A config of sharded training, and the work folder of a training with two processes that is complete."""
    if not SHARDS:
        pytest.skip('sharding needs torch 2.6')
    folder = tmp_path_factory.mktemp('sharded')
    plain = segmentor(folder, batch_size=3, frozen=1, with_cp=True, steps=6, optimizer='AdamW')
    config = folder / 'sharded.py'
    with plain.open('a') as file:
        file.write("optim_wrapper['clip_grad'] = dict(max_norm=0.1)\n")  # by the norm of all shards
    config.write_text(f"_base_ = ['./{plain.name}', '{ROOT}/configs/_base_/fsdp.py']")
    done = train(config, folder / 'work', processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    return config, folder / 'work'


def merged(work_dir, step, target):
    """The weights in a sharded checkpoint, read with tools/merge_shards.py."""
    source = work_dir / f'iter_{step}.pth'
    subprocess.run([sys.executable, ROOT / 'tools' / 'merge_shards.py', source, target], check=True)
    return weights(target)


@pytest.mark.slow
def test_sharded_training_is_killed(train, sharded, tmp_path):
    """Two processes are killed while they write the second checkpoint. --resume continues from the first one and ends
    with the same weights as an uninterrupted training. Without --resume, no training starts in this folder."""
    config, whole = sharded
    done = train(interrupted(config, 3, 'writing'), tmp_path / 'work', processes=2)
    assert done.returncode and {path.name for path in (tmp_path / 'work').glob('*.pth*')} == {
        'iter_2.pth',
        'iter_4.pth.part',
    }
    done = train(config, tmp_path / 'work', '--resume', processes=2)
    output = done.stdout + done.stderr
    assert done.returncode == 0 and f'Load checkpoint from {tmp_path}/work/iter_2.pth' in output, output
    assert {path.name for path in (tmp_path / 'work').glob('*.pth*')} == {'iter_2.pth', 'iter_4.pth', 'iter_6.pth'}
    resumed, expected = (
        merged(work_dir, 6, tmp_path / f'{name}.pth') for name, work_dir in (('a', tmp_path / 'work'), ('b', whole))
    )
    assert all(torch.equal(resumed[key], value) for key, value in expected.items())
    again = train(config, tmp_path / 'work', processes=2)
    assert again.returncode and 'has checkpoints of another training' in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize('processes', [1, 3, None])
def test_other_number_of_processes(train, sharded, tmp_path, processes):
    """A training with two processes is resumed with one process, with three, and without sharding. Its weights are the
    same up to rounding. A new optimizer state would change them by 1e-2 in a step."""
    config, whole = sharded
    expected = merged(whole, 6, tmp_path / 'expected.pth')
    start = whole / 'iter_4.pth'
    if not processes:
        merged(whole, 4, start := tmp_path / 'start.pth')
        config = config.with_name('ELSASwin_3.py')
    batch_size = f'train_dataloader.batch_size={6 // (processes or 1)}'
    work_dir = tmp_path / 'work'
    done = train(config, work_dir, '--resume', start, '--cfg-options', batch_size, processes=processes)
    assert done.returncode == 0, done.stdout + done.stderr
    resumed = merged(work_dir, 6, tmp_path / 'resumed.pth') if processes else weights(work_dir / 'iter_6.pth')
    for key, value in expected.items():
        torch.testing.assert_close(
            resumed[key], value, atol=2e-4, rtol=1e-3, msg=lambda message, key=key: f'{key}: {message}'
        )


@pytest.mark.slow
@pytest.mark.skipif(not SHARDS, reason='sharding needs torch 2.6')
def test_sharded(train, tmp_path):
    """FSDP with two processes on the CPU gives the weights of one process with both batches."""
    config = segmentor(tmp_path, batch_size=2, frozen=1, with_cp=True)
    sharded = tmp_path / 'sharded.py'
    sharded.write_text(f"_base_ = ['./{config.name}', '{ROOT}/configs/_base_/fsdp.py']")
    two = train(sharded, tmp_path / 'two', processes=2)
    assert two.returncode == 0, two.stdout + two.stderr
    one = train(segmentor(tmp_path, batch_size=4, frozen=1, with_cp=True), tmp_path / 'one')
    assert one.returncode == 0, one.stdout + one.stderr
    two, one = merged(tmp_path / 'two', 3, tmp_path / 'two.pth'), weights(tmp_path / 'one' / 'iter_3.pth')
    for key, value in one.items():
        torch.testing.assert_close(
            two[key], value, atol=1e-5, rtol=1e-4, msg=lambda message, key=key: f'{key}: {message}'
        )
