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


class WholeFiles(LocalBackend):
    """MMEngine's local files, each written beside its place and renamed into it when it is on the disk."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file, whole or not at all.

        Raises:
            OSError: if it cannot be written; what stood there stays, and nothing is left beside it.
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


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook for training that may be killed at any moment or run out of disk.

    A local checkpoint is there whole or not at all (:class:`WholeFiles`, which takes the place of MMEngine's local file
    backend when training begins), and what it supersedes by ``max_keep_ckpts`` or ``save_best`` is removed afterwards,
    not before: for a moment there is one more. Arguments: MMEngine's.

    Raises:
        CheckpointError: if a checkpoint cannot be written, while training.
    """

    def before_train(self, runner: Runner) -> None:
        register_backend('local', WholeFiles, force=True, prefixes='')
        super().before_train(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        with self._removing_afterwards():
            super()._save_checkpoint_with_step(runner, step, meta)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        with self._removing_afterwards():
            super()._save_best_checkpoint(runner, metrics)

    @contextmanager
    def _removing_afterwards(self) -> Iterator[None]:
        # MMEngine removes through the backend, then saves; saving the best may nest saving the last.
        superseded: list[str] = []
        remove, self.file_backend.remove = self.file_backend.remove, superseded.append
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f'{error.filename or self.out_dir} cannot be written ({error.strerror}); the '
                'checkpoints before it are whole: go on with --resume when that is mended'
            ) from error
        finally:
            self.file_backend.remove = remove
        for path in superseded:
            self.file_backend.remove(path)


def settle_resume(cfg: Config, checkpoint: str | None = None, trusted: bool = False) -> None:
    """Have a training go on from a checkpoint, or else from the newest whole one in its work folder, if there is any.

    The seed becomes that of the interrupted training: MMEngine takes it up too late for the order of the data.

    Args:
        cfg: of the training; ``resume``, ``load_from`` and ``randomness`` are set.
        checkpoint: what to go on from.
        trusted: see :func:`mmattn.weights.read_file`.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or no state of a training, or if there are checkpoints in
            the work folder and all are so.
    """
    candidates = [checkpoint] if checkpoint else map(str, _written(Path(cfg.work_dir)))
    meta, problems = None, []
    for path in candidates:
        try:
            meta = _read_meta(path, trusted)
            break
        except CheckpointError as error:
            problems.append(str(error))
    if problems and meta is None:
        raise CheckpointError(f'{"; ".join(problems)}: nothing to go on from')
    for problem in problems:
        print_log(f'{problem}: going on from {path}', logger='current', level=logging.WARNING)
    cfg.resume = meta is not None
    if meta is not None:
        cfg.load_from = path
        if meta.get('seed') is not None:
            cfg.randomness = {**cfg.get('randomness', {}), 'seed': meta['seed']}


def _written(folder: Path) -> Iterator[Path]:
    """The checkpoint that MMEngine noted as the last, then those before it, by number."""
    note = folder / 'last_checkpoint'
    if not note.is_file():
        return
    last = Path(note.read_text().strip())
    named = re.fullmatch(r'(epoch|iter)_(\d+)\.pth', last.name)
    if last.name:  # otherwise killed, or out of disk, when writing the note
        folder = last.parent if last.parent.is_dir() else folder
        yield folder / last.name
    kind, number = (named[1], int(named[2])) if named else ('*', math.inf)
    before = {int(path.stem.rpartition('_')[2]): path for path in folder.glob(f'{kind}_[0-9]*.pth')}
    yield from (before[i] for i in sorted(before, reverse=True) if i < number)


def _read_meta(path: str, trusted: bool) -> dict:
    """What a checkpoint says of its training.

    Raises:
        CheckpointError: if it is missing, truncated, damaged, or holds no state of a training.
    """
    if '://' in path or Path(path).is_dir():
        return {}  # not a file: for MMEngine to read
    if not Path(path).is_file():
        raise CheckpointError(f'there is no checkpoint {path}')
    state = read_file(path, trusted=trusted)
    if not isinstance(state, dict) or not {'meta', 'state_dict', 'message_hub'} <= set(state):
        raise CheckpointError(
            f'{path} holds no state of a training: to start from its weights, leave out --resume and set load_from'
        )
    return state['meta']
