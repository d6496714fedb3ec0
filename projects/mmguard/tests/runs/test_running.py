import errno
import logging
import os
import shutil
import signal
import weakref
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.runner import CheckpointLoader
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data._utils import signal_handling

from mmguard.errors import InputError
from mmguard.packages import MissingPackage
from mmguard.runs import checkpoints, resuming
from mmguard.runs import running as runs
from mmguard.runs.running import run_tool, running, train
from mmguard.weights import CheckpointError, read_file

from .small_training import Better, Data, Model, build


def raising(error):
    def main(*_, **__):
        raise error

    return main


@pytest.mark.parametrize(
    'error, sentence',
    [
        (InputError('a sentence'), 'a sentence'),
        (MissingPackage('mmdet is missing'), 'mmdet is missing'),
        (OSError(errno.ENOSPC, 'No space left', 'a'), "OSError: [Errno 28] No space left: 'a'"),
        (OSError(errno.EACCES, 'Permission denied', 'a'), "PermissionError: [Errno 13] Permission denied: 'a'"),
    ],
)
def test_errors_of_the_user_and_the_system_are_a_sentence(error, sentence):
    with pytest.raises(SystemExit) as end:
        run_tool(raising(error))
    assert end.value.code == sentence  # Python prints it to stderr and exits with status 1


def test_ctrl_c(capsys):
    """It ends a tool with the status that shells give it, and no traceback."""
    with pytest.raises(SystemExit) as end:
        run_tool(raising(KeyboardInterrupt))
    assert end.value.code == 130 and capsys.readouterr().err == 'Interrupted.\n'


def test_ctrl_c_that_becomes_another_error(capsys):
    """MMEngine raises a SyntaxError with the whole config for Ctrl-C while it formats a config."""

    def main():
        try:
            raise KeyboardInterrupt
        except BaseException:
            raise SyntaxError('many lines')  # noqa: B904

    with pytest.raises(SystemExit) as end:
        run_tool(main)
    assert end.value.code == 130 and capsys.readouterr().err == 'Interrupted.\n'


@pytest.mark.parametrize(
    'error',
    [KeyError('a'), ValueError('a'), ImportError('a'), RuntimeError('a'), OSError(errno.ENOENT, 'No such file', 'a')],
)
def test_other_errors_keep_their_traceback(error):
    """They may be mistakes of ours, also a file that is missing and was not checked."""
    with pytest.raises(type(error)):
        run_tool(raising(error))


class Code:
    def __reduce__(self):
        return print, ('code was run',)


@pytest.mark.parametrize('trusted', [False, True])
def test_code_in_checkpoints_is_not_run(tmp_path, capsys, trusted):
    """MMEngine reads checkpoints without running code in them, unless they are trusted."""
    torch.save({'meta': Code()}, tmp_path / 'c.pth')
    with running(Config(dict(launcher='none')), trusted):
        if trusted:
            CheckpointLoader.load_checkpoint(str(tmp_path / 'c.pth'))
        else:
            with pytest.raises(CheckpointError, match='code in a file is not run'):
                CheckpointLoader.load_checkpoint(str(tmp_path / 'c.pth'))
    assert ('code was run' in capsys.readouterr().out) == trusted


@pytest.mark.parametrize('address', ['s3://a/b.pth', 'petrel://a/b.pth', 'pavi://a.pth', 'mmcls://resnet50'])
def test_code_of_servers_is_not_run(address):
    """MMEngine has loaders of its own for these addresses, which read any pickle."""
    with running(Config(dict(launcher='none'))), pytest.raises(CheckpointError, match='without running code: download'):
        CheckpointLoader.load_checkpoint(address)
    own = dict(CheckpointLoader._schemes)
    with running(Config(dict(launcher='none')), trusted=True):
        assert CheckpointLoader._schemes['mmcls://'] is own['mmcls://']


@pytest.mark.parametrize('name', ['timm:resnet5', 'torchvision:resnet5', 'torchvision://resnet5'])
def test_names_of_published_weights(name):
    """MMEngine takes the names that mmattn takes, for load_from and parts of other packages."""
    with running(Config(dict(launcher='none'))), pytest.raises(CheckpointError, match='no (model|weights) resnet5'):
        CheckpointLoader.load_checkpoint(name)


def test_everything_is_undone():
    """The loaders of MMEngine and the setting of logging are as before, also after an error."""
    before = dict(CheckpointLoader._schemes), list(CheckpointLoader._schemes), logging.raiseExceptions
    with pytest.raises(KeyError), running(Config(dict(launcher='none'))):
        assert before[0] != CheckpointLoader._schemes and not logging.raiseExceptions
        raise KeyError
    assert before == (dict(CheckpointLoader._schemes), list(CheckpointLoader._schemes), logging.raiseExceptions)


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
def test_process_group(monkeypatch, device):
    """gloo's process group is there during a run without an accelerator; MMEngine starts others."""
    for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR='127.0.0.1', MASTER_PORT=0).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(runs, 'get_device', lambda: device)
    with running(Config(dict(launcher='pytorch'))):
        assert distributed.is_initialized() == (device == 'cpu')
        assert device != 'cpu' or distributed.get_backend() == 'gloo'
    assert not distributed.is_initialized()


@pytest.mark.parametrize('run', [train, lambda cfg: runs.test(cfg, 'weights.pth')], ids=['train', 'test'])
def test_nothing_holds_the_process_group(tmp_path, monkeypatch, run):
    """Its threads end before the interpreter does, which would abort the process otherwise, now and then."""
    for name, value in dict(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, MASTER_ADDR='127.0.0.1', MASTER_PORT=0).items():
        monkeypatch.setenv(name, str(value))
    torch.save(dict(state_dict=Model().state_dict()), tmp_path / 'weights.pth')
    monkeypatch.chdir(tmp_path)
    held, destroy = [], distributed.destroy_process_group
    monkeypatch.setattr(distributed, 'destroy_process_group', lambda: (held.append(model() is not None), destroy()))

    class Watch(Hook):
        def before_run(self, runner):
            nonlocal model
            model = weakref.ref(runner.model)
            assert isinstance(runner.model, DistributedDataParallel)

    model = None
    wrapper = Config(dict(model_wrapper_cfg=dict(type='MMDistributedDataParallel', device_ids=None)))
    sampler = dict(type='DefaultSampler', shuffle=False)
    loader = dict(batch_size=2, num_workers=0, sampler=sampler, dataset=Data())
    tested = dict(test_dataloader=loader, test_evaluator=[Better()], test_cfg=dict())
    settings = dict(cfg=wrapper, launcher='pytorch', custom_hooks=[Watch()], steps=2, **tested)
    cfg = Config(
        dict(
            work_dir=str(tmp_path / 'work'),
            launcher='pytorch',
            train_dataloader={},
            test_dataloader={},
            test_evaluator=[],
        )
    )
    monkeypatch.setattr(runs.Runner, 'from_cfg', lambda cfg: build(cfg.work_dir, prepared=cfg, **settings))
    run(cfg)
    assert held == [False]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Calls runs.train for the small model; the arguments are those of ``build``."""

    def train_small(resume=None, config=None, **arguments):
        settings = dict(work_dir=str(tmp_path / 'work'), launcher='none', train_dataloader=dict())
        cfg = Config(dict(settings, **config or {}))
        monkeypatch.setattr(runs.Runner, 'from_cfg', lambda cfg: build(cfg.work_dir, prepared=cfg, **arguments))
        train(cfg, resume)

    return train_small


@pytest.mark.parametrize('which', ['work_dir', 'log_dir', 'out_dir'])
def test_work_folder_is_removed(small, tmp_path, which):
    """The training ends in a sentence that names the folder, which is not made again."""
    folders = {}

    class Removal(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter == 3:
                out_dir = tmp_path / 'out' / 'work'
                folders.update(work_dir=runner.work_dir, log_dir=runner.log_dir, out_dir=str(out_dir))
                shutil.rmtree(folders[which])

    with pytest.raises(InputError, match='was removed while the training ran') as error:
        small(custom_hooks=[Removal()], checkpoint=dict(out_dir=str(tmp_path / 'out')))
    assert f'the folder {folders[which]} was' in str(error.value) and not os.path.exists(folders[which])


def test_missing_file_in_a_run_keeps_its_traceback(small, tmp_path):
    """It may be a mistake of ours; the work folder is there."""

    class Missing(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            Path(runner.work_dir, 'no').read_text()

    with pytest.raises(FileNotFoundError):
        small(custom_hooks=[Missing()])


def test_ctrl_c_while_a_checkpoint_is_written(small, tmp_path, monkeypatch):
    """The checkpoint before it stays whole, and nothing is left of this one."""

    class Interruption(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter == 3:
                monkeypatch.setattr(checkpoints.os, 'fsync', raising(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        small(custom_hooks=[Interruption()])
    monkeypatch.undo()
    assert {path.name for path in (tmp_path / 'work').iterdir() if '.pth' in path.name} == {'iter_2.pth'}
    assert read_file(tmp_path / 'work' / 'iter_2.pth')['meta']['iter'] == 2


def test_config_is_not_formatted_for_each_checkpoint(small, monkeypatch):
    """It takes up to a second. What a checkpoint has is the config all the same."""
    calls = []
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (calls.append(text) or text, True))

    class Count(Hook):
        def before_train(self, runner):
            calls.clear()

    small(custom_hooks=[Count()])
    assert not calls


def test_metrics_are_checked(small, monkeypatch):
    """Before the first step."""
    monkeypatch.setattr(Better, 'check_datasets', raising(InputError('of other images')), raising=False)
    with pytest.raises(InputError, match='of other images'):
        small(validate=True)


def test_second_training_in_a_folder(small, tmp_path):
    """It goes on with --resume or resume=True, and is refused otherwise; then nothing is written."""
    small(steps=4)
    before = {path: path.stat().st_mtime for path in (tmp_path / 'work').rglob('*') if 'lock' not in path.name}
    with pytest.raises(InputError, match='work has checkpoints of another training, as iter_2.pth:'):
        small()
    assert before == {path: path.stat().st_mtime for path in (tmp_path / 'work').rglob('*') if 'lock' not in path.name}
    small(config=dict(resume=True), steps=6)
    small('auto')
    assert (tmp_path / 'work' / 'last_checkpoint').read_text().endswith('iter_8.pth')


def test_two_trainings_at_once(small, tmp_path, monkeypatch):
    """The second is refused, with --resume too, and the first goes on."""
    monkeypatch.setattr(checkpoints, 'LOCK_TIMEOUT', 0)

    class Second(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            for resume in (None, 'auto'):
                with pytest.raises(InputError, match='work is in use by another training'):
                    small(resume)

    small(custom_hooks=[Second()])
    assert (tmp_path / 'work' / 'iter_8.pth').is_file()


@pytest.mark.parametrize('launcher, rank', [('pytorch', 'RANK'), ('slurm', 'SLURM_PROCID')])
def test_first_process_holds_the_lock(small, monkeypatch, launcher, rank):
    """The others must not wait for it."""
    monkeypatch.setattr(checkpoints, 'LOCK_TIMEOUT', 0)
    monkeypatch.setattr(runs, 'get_device', lambda: 'cuda')

    class Other(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter == 1:
                monkeypatch.setenv(rank, '1')
                with pytest.raises(InputError, match='has checkpoints'):
                    small(config=dict(launcher=launcher))

    small(custom_hooks=[Other()], steps=2, checkpoint=dict(interval=1))


def test_state_is_read_once(small, monkeypatch):
    """What prepare_resume has read is what MMEngine gets, and it is not in memory while training."""
    states = []

    def read_and_note(*args, **kwargs):
        state = read_file(*args, **kwargs)
        states.append(weakref.ref(state['state_dict']['layers.0.weight']))
        return state

    class Watch(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            assert runner.iter and states[0]() is None

    for module in (resuming, runs):
        monkeypatch.setattr(module, 'read_file', read_and_note)
    small(steps=4)
    small('auto', steps=6, custom_hooks=[Watch()])
    assert len(states) == 1


class Ill(BaseDataset):
    """Ends its process, by a signal or not, when sample 5 is read."""

    def __init__(self, signal):
        self.signal = signal
        super().__init__()

    def load_data_list(self):
        return [dict(x=torch.ones(3))] * 8

    def prepare_data(self, index):
        if index == 5:
            os.kill(os.getpid(), self.signal) if self.signal else os._exit(3)
        return dict(x=torch.ones(3))


@pytest.mark.parametrize(
    'split, signal', [('train', signal.SIGKILL), ('val', signal.SIGBUS), ('train', signal.SIGSEGV), ('val', 0)]
)
def test_dead_worker(small, split, signal):
    """Torch's sentence, and what to do."""
    loader = dict(batch_size=2, num_workers=1, sampler=dict(type='DefaultSampler', shuffle=False), dataset=Ill(signal))
    with pytest.raises(InputError, match='^DataLoader worker .*; most often memory is short: lower num_workers or'):
        small(validate=True, **{f'{split}_dataloader': loader})


def test_pipe_of_a_dead_worker(monkeypatch):
    """Its error may come before torch's."""
    runner = SimpleNamespace(cfg=Config(), register_hook=lambda *_: None, build_dataloader=None)
    monkeypatch.setattr(runs.time, 'sleep', raising(RuntimeError('DataLoader worker (pid 1) is killed')))
    with pytest.raises(InputError, match='^DataLoader worker .pid 1. is killed; most often'):
        runs._run(runner, raising(EOFError()))


def test_error_of_torch_is_lost(small, monkeypatch):
    """Then the error of the worker's pipe is all that tells of its end."""
    monkeypatch.setattr(signal_handling, '_error_if_any_worker_fails', lambda: None)
    monkeypatch.setattr(BaseProcess, 'is_alive', lambda _: True)
    monkeypatch.setattr(Queue, 'get', raising(ConnectionResetError(errno.ECONNRESET, 'Connection reset by peer')))
    loader = dict(batch_size=2, num_workers=1, sampler=dict(type='InfiniteSampler'), dataset=Ill(0))
    with pytest.raises(InputError, match='^DataLoader worker has ended: ConnectionResetError.*; most often'):
        small(train_dataloader=loader)


def test_other_errors_of_workers_stay(small, monkeypatch):
    monkeypatch.setattr(Ill, 'prepare_data', lambda *_: 1 / 0)
    loader = dict(batch_size=2, num_workers=1, sampler=dict(type='InfiniteSampler'), dataset=Ill(0))
    with pytest.raises(ZeroDivisionError):
        small(train_dataloader=loader)


@pytest.mark.parametrize('metric', ['CocoMetric', 'mmguard.checks.coco.CheckedCocoMetric'])
def test_average_precision_of_each_class(monkeypatch, metric):
    """A test of a detector prints the average precision of each class, unless its config says otherwise."""
    for given, classwise in (({}, True), (dict(classwise=False), False)):
        cfg = Config(dict(launcher='none', test_evaluator=[dict(type=metric, **given)]))
        monkeypatch.setattr(runs, 'check_files', raising(InputError('it goes no further')))
        with pytest.raises(InputError, match='no further'):
            runs.test(cfg, 'absent.pth')
        assert cfg.test_evaluator[0].classwise == classwise
