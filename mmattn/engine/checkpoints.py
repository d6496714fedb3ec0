"""Training that may be interrupted at any moment: checkpoints written whole, and the newest whole one found again."""

import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..weights import CheckpointError, read_file

#: name of :class:`AtomicBackend` among MMEngine's file backends
ATOMIC = 'mmattn.atomic'


@register_backend(ATOMIC)
class AtomicBackend(LocalBackend):
    """MMEngine's local files, each written to ``NAME.part`` first and renamed when it is on the disk."""

    def __init__(self) -> None:
        self._superseded: list[str | Path] | None = None

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file, whole or not at all.

        Raises:
            OSError: if it cannot be written. An older file of that name stays, and no part of the new one.
        """
        part = Path(f'{filepath}.part')
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open('wb') as file:
                file.write(obj)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, filepath)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(filepath)) from error

    def remove(self, filepath: str | Path) -> None:
        """Remove a file, inside of :meth:`removing_afterwards` at its end."""
        if self._superseded is None:
            super().remove(filepath)
        else:
            self._superseded.append(filepath)

    @contextmanager
    def removing_afterwards(self) -> Iterator[None]:
        """Put off removals to the end of the block; an error in the block cancels them."""
        self._superseded = []
        try:
            yield
            superseded = self._superseded
        finally:
            self._superseded = None
        for path in superseded:
            self.remove(path)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook for training that may be killed at any moment or run out of disk.

    A checkpoint on a local disk is there whole or not at all. What it supersedes by ``max_keep_ckpts`` or
    ``save_best`` is removed after it was written, so for a moment there is one checkpoint more. Where ``backend_args``
    or ``file_client_args`` are given, and for folders elsewhere, it does what MMEngine's hook does. FlexibleRunner
    (FSDP) passes no backend on: its checkpoints are written as MMEngine writes them, and removed as here.

    Args: MMEngine's.

    Raises:
        CheckpointError: if a checkpoint cannot be written, while training.
    """

    def before_train(self, runner: Runner) -> None:
        folder = str(self.out_dir or runner.work_dir)
        if '://' not in folder and self.backend_args is None and self.file_client_args is None:
            self.backend_args = dict(backend=ATOMIC)
        super().before_train(runner)

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        with self._saving():
            super().after_train_iter(runner, *args, **kwargs)

    def after_train_epoch(self, runner: Runner) -> None:
        with self._saving():
            super().after_train_epoch(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict) -> None:
        with self._saving():
            super().after_val_epoch(runner, metrics)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        backend = getattr(self, 'file_backend', None)  # none in a validation without a training
        if not isinstance(backend, AtomicBackend):
            yield
            return
        try:
            with backend.removing_afterwards():
                yield
        except OSError as error:
            raise CheckpointError(
                f'{error.filename or self.out_dir} cannot be written ({error.strerror}); the '
                'checkpoints before it are whole: free or repair the disk, then continue with --resume'
            ) from error


def prepare_resume(cfg: Config, checkpoint: str | None = None, trusted: bool = False) -> None:
    """Make a training resume from a checkpoint, or from the newest whole one in its work folder, if there is any.

    The seed becomes that of the interrupted training: MMEngine sets it too late for the order of the data.

    Args:
        cfg: of the training; ``resume``, ``load_from`` and ``randomness`` are set.
        checkpoint: file or address to resume from.
        trusted: see :func:`mmattn.weights.read_file`.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or no state of a training, or if the work folder has
            checkpoints and all of them are so.
    """
    candidates = [checkpoint] if checkpoint else map(str, _newest_first(Path(cfg.work_dir)))
    meta, problems = None, []
    for path in candidates:
        try:
            meta = _read_meta(path, trusted)
            break
        except CheckpointError as error:
            problems.append(str(error))
    if problems and meta is None:
        raise CheckpointError(f'{"; ".join(problems)}: nothing to resume from')
    for problem in problems:
        print_log(f'{problem}: resuming from {path}', logger='current', level=logging.WARNING)
    cfg.resume = meta is not None
    if meta is not None:
        cfg.load_from = path
        if meta.get('seed') is not None:
            cfg.randomness = {**cfg.get('randomness', {}), 'seed': meta['seed']}


def _newest_first(folder: Path) -> Iterator[Path]:
    """The checkpoint that MMEngine noted as the last, then those of lower numbers."""
    note = folder / 'last_checkpoint'
    if not note.is_file():
        return
    last = Path(note.read_text().strip())
    named = re.fullmatch(r'(epoch|iter)_(\d+)\.pth', last.name)
    if last.name:  # The note is empty if writing it was interrupted.
        folder = last.parent if last.parent.is_dir() else folder
        yield folder / last.name
    kind, number = (named[1], int(named[2])) if named else ('*', math.inf)
    before = {int(path.stem.rpartition('_')[2]): path for path in folder.glob(f'{kind}_[0-9]*.pth')}
    yield from (before[i] for i in sorted(before, reverse=True) if i < number)


def _read_meta(path: str, trusted: bool) -> dict:
    """The ``meta`` of a training's state.

    Raises:
        CheckpointError: if the file is missing or damaged, or holds no state of a training.
    """
    if '://' in path or Path(path).is_dir():
        return {}  # MMEngine reads addresses and the folders of sharded states
    if not Path(path).is_file():
        raise CheckpointError(f'there is no checkpoint {path}')
    state = read_file(path, trusted=trusted)
    if not isinstance(state, dict) or not {'meta', 'state_dict', 'message_hub'} <= set(state):
        raise CheckpointError(
            f'{path} holds no state of a training: to start from its weights, leave out --resume and set load_from'
        )
    return state['meta']
