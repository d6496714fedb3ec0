"""Checkpoints of a small model; tests/tools/test_dist_and_resume.py kills tools/train.py itself."""

import errno
import os
import resource
import signal
import time

import numpy as np
import pytest

from mmguard.errors import InputError
from mmguard.runs import checkpoints
from mmguard.runs.checkpoints import AtomicBackend, locked
from mmguard.weights import CheckpointError, read_file

from .small_training import Better, train


@pytest.mark.parametrize('keep', [dict(max_keep_ckpts=2), dict()])
def test_number_of_checkpoints(tmp_path, keep):
    """max_keep_ckpts is the number of checkpoints at the end."""
    train(tmp_path, checkpoint=keep)
    numbers = sorted(int(path.stem[5:]) for path in tmp_path.glob('*.pth*'))
    assert numbers == [2, 4, 6, 8][-keep.get('max_keep_ckpts', 4) :]


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """Has the disk full when a file of tmp_path is written."""

    def fill(name):
        monkeypatch.setattr(checkpoints, 'token_hex', lambda count: 'part')
        (tmp_path / f'{name}.part.part').symlink_to('/dev/full')

    return fill


@pytest.mark.parametrize(
    'full, best', [('iter_6.pth', 'best_acc_iter_4.pth'), ('best_acc_iter_6.pth', 'best_acc_iter_4.pth')]
)
def test_full_disk(tmp_path, full_disk, full, best):
    """If a checkpoint does not fit on the disk, the error says so and the training can be resumed.

    No part of the file is left. The last checkpoint before it and the best one stay.
    """
    full_disk(full)
    options = dict(max_keep_ckpts=1, save_best='acc', rule='greater')
    with pytest.raises(CheckpointError, match=rf'{full} cannot be written \(No space left on device\); .* --resume'):
        train(tmp_path, checkpoint=options, validate=True)
    left = {path.name for path in tmp_path.glob('*.pth*')}
    assert left == {best, 'iter_4.pth' if full.startswith('iter') else 'iter_6.pth'}
    train(tmp_path, checkpoint=options, validate=True)
    assert {path.name for path in tmp_path.glob('*.pth*')} == {'iter_8.pth', 'best_acc_iter_8.pth'}


def test_a_given_backend_is_used(tmp_path, full_disk):
    """With backend_args, the hook writes as MMEngine's does: not to another name first."""
    full_disk('iter_2.pth')
    train(tmp_path, checkpoint=dict(backend_args=dict(backend='local')))
    assert (tmp_path / 'iter_2.pth').is_file()


@pytest.mark.parametrize('metrics', [['acc'], ['acc', 'mIoU']], ids=['one', 'two'])
def test_best_checkpoint_of_another_folder_stays(tmp_path, metrics):
    """A training resumed from a checkpoint of another folder removes nothing there. In its own folder it does."""
    options = dict(save_best=metrics, rule='greater')
    train(tmp_path / 'first', checkpoint=options, validate=True, steps=4)
    before = set((tmp_path / 'first').iterdir())
    assert len(list((tmp_path / 'first').glob('best_*'))) == len(metrics)
    train(tmp_path / 'second', checkpoint=options, validate=True, resume=str(tmp_path / 'first' / 'iter_4.pth'))
    assert set((tmp_path / 'first').iterdir()) == before
    train(tmp_path / 'first', checkpoint=options, validate=True)
    assert len(list((tmp_path / 'first').glob('best_*'))) == len(metrics)


def test_numbers_of_the_run_are_plain(tmp_path, monkeypatch):
    """A metric may give NumPy's numbers, as MMSegmentation's do. torch.load refuses them if it may not run code."""
    monkeypatch.setattr(Better, 'compute_metrics', lambda *_: dict(acc=np.float32(0.5)))
    train(tmp_path, checkpoint=dict(save_best='acc', rule='greater'), validate=True, steps=4)
    info = read_file(tmp_path / 'iter_4.pth')['message_hub']['runtime_info']
    assert info['best_score'] == 0.5 and not any(isinstance(value, np.generic) for value in info.values())


def test_killed_while_writing(tmp_path):
    """The kernel kills the process while it writes: the older file of that name stays whole.

    The next training in the folder removes the part that was written.
    """
    path = tmp_path / 'iter_2.pth'
    path.write_bytes(b'whole')
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        try:
            AtomicBackend().put(bytes(2000), path)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    (part,) = tmp_path.glob('iter_2.pth*.part')
    assert path.read_bytes() == b'whole' and part.stat().st_size == 1000
    AtomicBackend().put(b'newer', path)
    assert path.read_bytes() == b'newer' and part.exists()  # It may be another process's.
    (tmp_path / 'video.part').touch()
    with locked([tmp_path]):
        assert {file.name for file in tmp_path.iterdir()} == {'iter_2.pth', 'video.part', '.lock', '.lock.txt'}


def test_lock(tmp_path, monkeypatch):
    """A second training is refused, with the first one's process. After a kill, the folder is free.

    A data worker of the first training outlives it by a moment.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with locked([tmp_path]):
            os.write(writing, b'locked')
            time.sleep(0.5 if os.fork() else 1.5)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.read(reading, 6) == b'locked'
    part = tmp_path / 'iter_2.pth.abcd.part'
    part.touch()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, 'LOCK_TIMEOUT', 0)
        message = f'{tmp_path} is in use by another training \\(process {child} on .*--work-dir'
        with pytest.raises(InputError, match=message), locked([tmp_path]):
            pass
    assert part.exists()
    os.waitpid(child, 0)
    with locked([tmp_path]):
        assert not part.exists()


def test_folder_cannot_be_made(tmp_path):
    (tmp_path / 'file').touch()
    for folder in (tmp_path / 'file', tmp_path / 'a\0'):
        with pytest.raises(InputError, match='cannot be made .*: give another --work-dir'), locked([folder]):
            pass


def test_no_locks_on_this_file_system(tmp_path, monkeypatch, log):
    """A network disk may have none: the training runs, and the log says so."""

    def refuse(*_, **__):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(checkpoints.FileLock, 'acquire', refuse)
    (tmp_path / 'iter_2.pth.abcd.part').touch()
    with locked([tmp_path]):
        assert 'start no second training in it' in log[0] and list(tmp_path.glob('*.part'))
