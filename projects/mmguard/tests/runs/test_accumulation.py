"""A training with accumulated gradients that is interrupted between two steps of the optimizer, and resumed."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.runner import EpochBasedTrainLoop, FlexibleRunner, Runner

from mmguard.errors import InputError
from mmguard.runs.accumulation import GRADIENTS, AccumulationHook
from mmguard.weights import CheckpointError

from .small_training import STEPS, Killed, build, in_two_processes

WRAPPERS = dict(
    plain=dict(accumulative_counts=3),
    clipped=dict(accumulative_counts=3, clip_grad=dict(max_norm=0.1)),
    bfloat16=dict(type='BFloat16OptimWrapper', accumulative_counts=3),
)


def run(folder, by_epoch, wrapper='plain', **settings) -> Runner:
    """A training of 8 steps, with checkpoints after the 4th, between the optimizer's first and second step."""
    optim_wrapper = dict(WRAPPERS[wrapper], optimizer=dict(type='AdamW', lr=0.1))
    settings = dict(seed=0, optim_wrapper=optim_wrapper, custom_hooks=[AccumulationHook()]) | settings
    runner = build(folder, by_epoch, **settings)
    runner.train()
    return runner


def state(runner):
    optimizer = runner.optim_wrapper.optimizer.state_dict()['state']
    return runner.model.state_dict() | {
        f'{i}.{key}': value for i, each in optimizer.items() for key, value in each.items()
    }


def assert_equal(one, other):
    assert one.keys() == other.keys() and all(torch.equal(one[key], value) for key, value in other.items())


@pytest.mark.parametrize('by_epoch, wrapper', [(False, 'plain'), (True, 'clipped'), (False, 'bfloat16')])
def test_resumed_between_two_steps(tmp_path, by_epoch, wrapper):
    """Weights and the optimizer's state are those of a training in one go, bit for bit. MMEngine's checkpoints lack
    the gradients of the 4th step."""
    with pytest.raises(Killed):
        run(tmp_path / 'killed', by_epoch, wrapper, killed=True)
    last = torch.load((tmp_path / 'killed' / 'last_checkpoint').read_text(), weights_only=False)
    assert last['meta']['iter'] == 4 and last[GRADIENTS].keys() == {
        f'layers.{i}.{name}' for i in range(3) for name in ('weight', 'bias')
    }
    resumed = run(tmp_path / 'killed', by_epoch, wrapper)
    assert resumed.iter == STEPS
    assert_equal(state(resumed), state(run(tmp_path / 'whole', by_epoch, wrapper)))


def state_of_first(rank, folder, killed, **settings):
    cfg = Config(dict(model_wrapper_cfg=dict(type='MMDistributedDataParallel', device_ids=None)))
    name = f'{folder.name}{killed}'
    try:
        runner = run(folder, False, launcher='pytorch', cfg=cfg, experiment_name=name, killed=killed, **settings)
    except Killed:
        return None
    # The statistics of batch norms in a checkpoint are those of the first process.
    return {key: value.numpy() for key, value in state(runner).items()} if rank == 0 else None


def test_resumed_between_two_steps_in_two_processes(tmp_path):
    """The same for two processes, each of which has gradients of its own images between the steps. Checkpoints there
    change nothing but the rounding."""
    # The gradient of a bias before a norm is 0 but for rounding, which AdamW would enlarge to whole steps.
    settings = dict(optim_wrapper=dict(WRAPPERS['plain'], optimizer=dict(type='SGD', lr=0.1, momentum=0.9)))

    def first(folder, killed=False, **changes):
        given = settings | changes
        return in_two_processes(lambda rank: state_of_first(rank, tmp_path / folder, killed, **given))[0]

    first('killed', killed=True)
    resumed, whole = first('killed'), first('whole')
    assert resumed.keys() == whole.keys() and all((resumed[key] == value).all() for key, value in whole.items())
    plain = first('plain', checkpoint=dict(interval=-1, save_last=False))
    assert all(np.allclose(plain[key], value, atol=1e-6) for key, value in whole.items())


@pytest.mark.parametrize('gradients', [3, {'layers.0.bias': torch.ones(3)}], ids=['number', 'shape'])
def test_gradients_that_do_not_fit(tmp_path, gradients):
    with pytest.raises(Killed):
        run(tmp_path, False, killed=True)
    last = torch.load(tmp_path / 'iter_4.pth', weights_only=False)
    torch.save(last | {GRADIENTS: gradients}, tmp_path / 'iter_4.pth')
    with pytest.raises(CheckpointError, match='iter_4.pth (is the state of another training|cannot be resumed)'):
        run(tmp_path, False)


def test_gradients_are_missing(tmp_path, capsys):
    """As in a checkpoint of MMEngine's own tools: the training goes on, and the log says what is lost."""
    with pytest.raises(Killed):
        run(tmp_path, False, killed=True, custom_hooks=[])
    run(tmp_path, False)
    assert 'iter_4.pth lies between two steps of the optimizer and has no gradients' in capsys.readouterr().out


@pytest.mark.parametrize('interval, by_epoch, refused', [(4, False, True), (6, False, False), (1, True, True)])
def test_sharded_checkpoints_at_whole_steps(monkeypatch, interval, by_epoch, refused):
    """They have no accumulated gradients, so an interval that would lose some is refused before the first step."""
    loop = EpochBasedTrainLoop.__new__(EpochBasedTrainLoop)
    loop.dataloader = [None] * 4
    runner = FlexibleRunner.__new__(FlexibleRunner)
    runner.cfg = Config(dict(optim_wrapper=dict(accumulative_counts=3)))
    runner._hooks, runner._train_loop = [CheckpointHook(interval, by_epoch)], loop
    with pytest.raises(InputError, match='accumulative_counts=3') if refused else nullcontext():
        AccumulationHook().before_train(runner)
