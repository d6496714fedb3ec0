import errno
import logging

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import CheckpointLoader
from torch import distributed

from mmattn.engine import runs
from mmattn.engine.runs import run_tool, running, train
from mmattn.errors import InputError
from mmattn.packages import MissingPackage
from mmattn.weights import CheckpointError


def raising(error):
    def main():
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


@pytest.mark.parametrize(
    'launcher, resume, message', [('none', None, 'dist_train.sh'), ('pytorch', 'auto', 'cannot be resumed')]
)
def test_what_sharded_training_cannot_do(launcher, resume, message):
    with pytest.raises(InputError, match=message):
        train(Config(dict(launcher=launcher, strategy=dict(type='FSDPStrategy'))), resume)
