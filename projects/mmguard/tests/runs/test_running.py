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
from mmengine.runner.loops import _InfiniteDataloaderIterator
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from mmguard.errors import InputError
from mmguard.runs import checkpoints, resuming
from mmguard.runs import running as runs
from mmguard.runs.running import run_tool, running, stop_workers, train
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
        (OSError(errno.ENOSPC, 'No space left', 'a'), "OSError: [Errno 28] No space left: 'a'"),
        (ValueError('a'), None),
        (OSError(errno.ENOENT, 'No such file', 'a'), None),
    ],
    ids=['input', 'full disk', 'mistake', 'absent file'],
)
def test_how_errors_end(error, sentence):
    """What the user or the system refuses is a sentence. Others may be mistakes of ours, also a file that is missing
    and was not checked: they keep their traceback."""
    with pytest.raises(SystemExit if sentence else type(error)) as end:
        run_tool(raising(error))
    assert sentence is None or end.value.code == sentence  # Python prints it to stderr and exits with status 1


def test_ctrl_c(capsys):
    """It ends a tool with the status that shells give it, and no traceback. While MMEngine formats a config, it raises
    a SyntaxError with the whole config for it."""

    def main():
        try:
            raise KeyboardInterrupt
        except BaseException:
            raise SyntaxError('many lines')  # noqa: B904

    with pytest.raises(SystemExit) as end:
        run_tool(main)
    assert end.value.code == 130 and capsys.readouterr().err == 'Interrupted.\n'


class Code:
    def __reduce__(self):
        return print, ('code was run',)


def test_code_in_checkpoints_is_not_run(tmp_path, capsys):
    """MMEngine reads checkpoints without running code in them, unless they are trusted. Its own loaders of some
    addresses read any pickle. It takes the names of published weights that mmattn takes."""
    torch.save({'meta': Code()}, file := str(tmp_path / 'c.pth'))
    with running(Config(dict(launcher='none'))):
        for address, message in (
            (file, 'code in a file is not run'),
            ('s3://a/b.pth', 'without running code: download'),
            ('mmcls://resnet50', 'without running code: download'),
            ('timm:resnet5', 'no model resnet5'),
            ('torchvision://resnet5', 'no (model|weights) resnet5'),
        ):
            with pytest.raises(CheckpointError, match=message):
                CheckpointLoader.load_checkpoint(address)
    assert 'code was run' not in capsys.readouterr().out
    own = dict(CheckpointLoader._schemes)
    with running(Config(dict(launcher='none')), trusted=True):
        CheckpointLoader.load_checkpoint(file)
        assert CheckpointLoader._schemes['mmcls://'] is own['mmcls://']
    assert 'code was run' in capsys.readouterr().out


def test_everything_is_undone():
    """The loaders of MMEngine and the setting of logging are as before, also after an error."""
    before = dict(CheckpointLoader._schemes), list(CheckpointLoader._schemes), logging.raiseExceptions
    with pytest.raises(KeyError), running(Config(dict(launcher='none'))):
        assert before[0] != CheckpointLoader._schemes and not logging.raiseExceptions
        raise KeyError
    assert before == (dict(CheckpointLoader._schemes), list(CheckpointLoader._schemes), logging.raiseExceptions)


@pytest.fixture
def alone(monkeypatch):
    """The environment of a launcher that starts one process."""
    for name, value in dict(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, MASTER_ADDR='127.0.0.1', MASTER_PORT=0).items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
def test_process_group(alone, monkeypatch, device):
    """gloo's process group is there during a run without an accelerator; MMEngine starts others."""
    monkeypatch.setattr(runs, 'get_device', lambda: device)
    with running(Config(dict(launcher='pytorch'))):
        assert distributed.is_initialized() == (device == 'cpu')
        assert device != 'cpu' or distributed.get_backend() == 'gloo'
    assert not distributed.is_initialized()


@pytest.mark.parametrize('run', [train, lambda cfg: runs.test(cfg, 'weights.pth')], ids=['train', 'test'])
def test_nothing_holds_the_process_group(tmp_path, alone, monkeypatch, run):
    """Its threads end before the interpreter does, which would abort the process otherwise, now and then."""
    torch.save(dict(state_dict=Model().state_dict()), tmp_path / 'weights.pth')
    monkeypatch.chdir(tmp_path)
    models, held, destroy = [], [], distributed.destroy_process_group
    monkeypatch.setattr(distributed, 'destroy_process_group', lambda: (held.append(models[0]() is None), destroy()))

    class Watch(Hook):
        def before_run(self, runner):
            models.append(weakref.ref(runner.model))
            assert isinstance(runner.model, DistributedDataParallel)

    wrapper = Config(dict(model_wrapper_cfg=dict(type='MMDistributedDataParallel', device_ids=None)))
    loader = dict(batch_size=2, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False), dataset=Data())
    tested = dict(test_dataloader=loader, test_evaluator=[Better()], test_cfg=dict())
    settings = dict(cfg=wrapper, launcher='pytorch', custom_hooks=[Watch()], steps=2, **tested)
    loaders = dict(train_dataloader={}, test_dataloader={}, test_evaluator=[])
    cfg = Config(dict(work_dir=str(tmp_path / 'work'), launcher='pytorch', **loaders))
    monkeypatch.setattr(runs.Runner, 'from_cfg', lambda cfg: build(cfg.work_dir, prepared=cfg, **settings))
    run(cfg)
    assert held == [True]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Calls runs.train for the small model; the arguments are those of ``build``."""

    def train_small(resume=None, config=None, **arguments):
        settings = dict(work_dir=str(tmp_path / 'work'), launcher='none', train_dataloader=dict())
        cfg = Config(dict(settings, **config or {}))
        monkeypatch.setattr(runs.Runner, 'from_cfg', lambda cfg: build(cfg.work_dir, prepared=cfg, **arguments))
        train(cfg, resume)

    return train_small


class Once(Hook):
    """Calls a function before a step."""

    def __init__(self, call, step=3):
        self.call, self.step = call, step

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.step:
            self.call(runner)


@pytest.mark.parametrize('which', ['work_dir', 'log_dir', 'out_dir'])
def test_work_folder_is_removed(small, tmp_path, which):
    """The training ends in a sentence that names the folder, which is not made again."""
    removed = []

    def remove(runner):
        removed.append(str(tmp_path / 'out' / 'work') if which == 'out_dir' else getattr(runner, which))
        shutil.rmtree(removed[0])

    with pytest.raises(InputError, match='was removed while the training ran') as error:
        small(custom_hooks=[Once(remove)], checkpoint=dict(out_dir=str(tmp_path / 'out')))
    assert f'the folder {removed[0]} was' in str(error.value) and not os.path.exists(removed[0])


@pytest.mark.parametrize('persistent', [True, False], ids=['wait for an epoch', 'of an endless loop'])
def test_data_workers_end(persistent):
    """No worker is left at the end of a run, so that garbage collection has none to end."""
    loader = DataLoader(range(8), num_workers=1, persistent_workers=persistent)
    endless = _InfiniteDataloaderIterator(loader)
    next(endless)
    (worker,) = endless._iterator._workers
    loop = SimpleNamespace(dataloader=loader, **({} if persistent else dict(dataloader_iterator=endless)))
    assert worker.is_alive()
    stop_workers(SimpleNamespace(_train_loop=loop, _val_loop=dict(type='ValLoop'), _test_loop=None))
    assert not worker.is_alive()


def test_missing_file_in_a_run_keeps_its_traceback(small):
    """It may be a mistake of ours; the work folder is there."""
    with pytest.raises(FileNotFoundError):
        small(custom_hooks=[Once(lambda runner: Path(runner.work_dir, 'no').read_text())])


def test_ctrl_c_while_a_checkpoint_is_written(small, tmp_path, monkeypatch):
    """The checkpoint before it stays whole, and nothing is left of this one."""
    interrupt = Once(lambda _: monkeypatch.setattr(checkpoints.os, 'fsync', raising(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        small(custom_hooks=[interrupt])
    monkeypatch.undo()
    assert {path.name for path in (tmp_path / 'work').iterdir() if '.pth' in path.name} == {'iter_2.pth'}
    assert read_file(tmp_path / 'work' / 'iter_2.pth')['meta']['iter'] == 2


def test_config_is_not_formatted_for_each_checkpoint(small, monkeypatch):
    """It takes up to a second. What a checkpoint has is the config all the same."""
    calls = []
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (calls.append(text) or text, True))
    small(custom_hooks=[Once(lambda _: calls.clear(), step=0)])
    assert not calls


def test_metrics_are_checked(small, monkeypatch):
    """Before the first step."""
    monkeypatch.setattr(Better, 'check_datasets', raising(InputError('of other images')), raising=False)
    with pytest.raises(InputError, match='of other images'):
        small(validate=True)


def test_second_training_in_a_folder(small, tmp_path):
    """It goes on with --resume or resume=True, and is refused otherwise; then nothing is written."""

    def files():
        return {path: path.stat().st_mtime for path in (tmp_path / 'work').rglob('*') if 'lock' not in path.name}

    small(steps=4)
    before = files()
    with pytest.raises(InputError, match='work has checkpoints of another training, as iter_2.pth:'):
        small()
    assert before == files()
    small(config=dict(resume=True), steps=6)
    small('auto')
    assert (tmp_path / 'work' / 'last_checkpoint').read_text().endswith('iter_8.pth')


def test_two_trainings_at_once(small, tmp_path, monkeypatch):
    """The second is refused, with --resume too, and the first goes on. Only the first process of a training holds the
    lock: the others must not wait for it."""
    monkeypatch.setattr(checkpoints, 'LOCK_TIMEOUT', 0)
    monkeypatch.setattr(runs, 'get_device', lambda: 'cuda')

    def second(runner):
        for resume in (None, 'auto'):
            with pytest.raises(InputError, match='work is in use by another training'):
                small(resume)
        monkeypatch.setenv('SLURM_PROCID', '1')
        with pytest.raises(InputError, match='has checkpoints'):
            small(config=dict(launcher='slurm'))

    small(custom_hooks=[Once(second)])
    assert (tmp_path / 'work' / 'iter_8.pth').is_file()


def test_state_is_read_once(small, monkeypatch):
    """What prepare_resume has read is what MMEngine gets, and it is not in memory while training."""
    states = []

    def read_and_note(*args, **kwargs):
        state = read_file(*args, **kwargs)
        states.append(weakref.ref(state['state_dict']['layers.0.weight']))
        return state

    for module in (resuming, runs):
        monkeypatch.setattr(module, 'read_file', read_and_note)
    small(steps=4)
    small('auto', steps=6, custom_hooks=[Once(lambda _: states.append(states[0]() is None), step=4)])
    assert states[1:] == [True]


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


def ill_loader(signal=0):
    sampler = dict(type='DefaultSampler', shuffle=False)
    return dict(batch_size=2, num_workers=1, sampler=sampler, dataset=Ill(signal))


@pytest.mark.parametrize('split, signal', [('train', signal.SIGKILL), ('val', 0)])
def test_dead_worker(small, split, signal):
    """Torch's sentence, and what to do."""
    with pytest.raises(InputError, match='^DataLoader worker .*; most often memory is short: lower num_workers or'):
        small(validate=True, **{f'{split}_dataloader': ill_loader(signal)})


def test_error_of_torch_is_lost(small, monkeypatch):
    """Then the error of the worker's pipe is all that tells of its end."""
    monkeypatch.setattr(signal_handling, '_error_if_any_worker_fails', lambda: None)
    monkeypatch.setattr(BaseProcess, 'is_alive', lambda _: True)
    monkeypatch.setattr(Queue, 'get', raising(ConnectionResetError(errno.ECONNRESET, 'Connection reset by peer')))
    with pytest.raises(InputError, match='^DataLoader worker has ended: ConnectionResetError.*; most often'):
        small(train_dataloader=ill_loader())


def test_other_errors_of_workers_stay(small, monkeypatch):
    monkeypatch.setattr(Ill, 'prepare_data', lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small(train_dataloader=ill_loader())


@pytest.mark.parametrize('metric', ['CocoMetric', 'mmguard.checks.coco.CheckedCocoMetric'])
def test_average_precision_of_each_class(monkeypatch, metric):
    """A test of a detector prints the average precision of each class, unless its config says otherwise."""
    for given, classwise in (({}, True), (dict(classwise=False), False)):
        cfg = Config(dict(launcher='none', test_evaluator=[dict(type=metric, **given)]))
        monkeypatch.setattr(runs, 'check_files', raising(InputError('it goes no further')))
        with pytest.raises(InputError, match='no further'):
            runs.test(cfg, 'absent.pth')
        assert cfg.test_evaluator[0].classwise == classwise
