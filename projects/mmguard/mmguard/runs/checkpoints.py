"""Writing checkpoints: whole or not at all, with the settings of the backbones, in a work folder that is locked."""

import errno
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

import numpy as np
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import CheckpointLoader, Runner
from torch import nn

from ..checks.config_types import loads_strictly
from ..checks.datasets import inner_datasets
from ..errors import CheckpointError, InputError, describe, warn
from ..weights import plain_names, read_file

#: name of :class:`AtomicBackend` among MMEngine's file backends
ATOMIC = 'mmguard.atomic'
#: before the path of weights that MMEngine and OpenMMLab's inferencers are to read as mmguard does: of safetensors, too
READ_BY_MMGUARD = 'mmguard://'
#: seconds to wait for a lock: with old versions of filelock, data workers outlive a killed training and its lock
LOCK_TIMEOUT = 10
#: what is said of a folder that is gone
REMOVED = 'the folder {} was removed while the training ran, so the training has ended; what was in it is lost'
#: what systems say that cannot lock files
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)


@CheckpointLoader.register_scheme(prefixes=READ_BY_MMGUARD)
def load_for_mmengine(path: str, map_location: str | None = None) -> object:
    """The contents of mmguard://PATH, see :func:`mmguard.weights.read_file`."""
    return read_file(path.removeprefix(READ_BY_MMGUARD), map_location)


@register_backend(ATOMIC)
class AtomicBackend(LocalBackend):
    """MMEngine's local files, each written to another name ending in ``.part`` and renamed when it is on the disk."""

    def __init__(self) -> None:
        self._superseded: list[str | Path] | None = None

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file, whole or not at all.

        Raises:
            OSError: if it cannot be written. An older file of that name stays, and no part of the new one.
        """
        part = Path(f'{filepath}.{token_hex(4)}.part')  # No other process has this name.
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open('wb') as file:
                file.write(obj)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, filepath)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(filepath)) from error
        finally:
            part.unlink(missing_ok=True)

    def remove(self, filepath: str | Path) -> None:
        """Remove a file or a folder; in a block of :meth:`removing_afterwards`, at the end of the block."""
        if self._superseded is not None:
            self._superseded.append(filepath)
        elif self.isdir(filepath):
            part = f'{filepath}.{token_hex(4)}.part'  # A kill during the removal leaves no incomplete checkpoint.
            os.replace(filepath, part)
            super().rmtree(part)
        else:
            super().remove(filepath)

    rmtree = remove

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
    """MMEngine's CheckpointHook, with its arguments, for training that may be killed any moment or run out of disk.

    A checkpoint on a local disk is complete or does not exist. ``max_keep_ckpts`` and ``save_best`` remove an older
    checkpoint only after the next one is written, so for a moment there is one checkpoint more. With ``backend_args``
    or ``file_client_args``, and for folders that are not on a local disk, the hook works as MMEngine's. Sharded
    checkpoints are written by :class:`mmguard.runs.sharding.ShardedStrategy` and removed by this hook.

    Each checkpoint has the settings of the backbones in ``meta['mmattn']``, see :func:`backbone_settings`, and what
    :func:`training_note` gives in ``meta['mmattn_training']``. Numbers about the run, such as the best score, are
    Python's and not NumPy's.

    Raises:
        CheckpointError: if a checkpoint cannot be written, while training.
    """

    def before_train(self, runner: Runner) -> None:
        folder = str(self.out_dir or runner.work_dir)
        if '://' not in folder and self.backend_args is None and self.file_client_args is None:
            self.backend_args = dict(backend=ATOMIC)
        super().before_train(runner)
        if isinstance(self.file_backend, AtomicBackend):
            os.makedirs(self.out_dir, exist_ok=True)
        # A resumed state names the best checkpoint of the training that it is from. If that had another folder, it
        # would be removed from there when this training finds a better one.
        if getattr(self, 'best_ckpt_path', None):
            self.best_ckpt_path = self._in_own_folder(self.best_ckpt_path)
        for key, path in getattr(self, 'best_ckpt_path_dict', {}).items():
            self.best_ckpt_path_dict[key] = path and self._in_own_folder(path)

    def _in_own_folder(self, path: str) -> str | None:
        own = self.file_backend.join_path(self.out_dir, os.path.basename(path))
        return own if self.file_backend.exists(own) else None

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        for folder in {self.out_dir, runner.work_dir} if isinstance(self.file_backend, AtomicBackend) else ():
            if not os.path.isdir(folder):  # It would be made again, with this checkpoint alone.
                raise CheckpointError(REMOVED.format(folder))
        checkpoint['meta']['mmattn'] = backbone_settings(unwrapped(runner.model))
        checkpoint['meta']['mmattn_training'] = training_note(runner)
        # The best score has the type of the metric. torch.load, if it may not run code, takes plain numbers only.
        info = checkpoint.get('message_hub', {}).get('runtime_info', {})
        info.update({key: value.item() for key, value in info.items() if isinstance(value, np.generic)})

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
        with writing_checkpoints(self.out_dir), backend.removing_afterwards():
            yield


def use_atomic_checkpoints(cfg: Config) -> None:
    """Have checkpoints written whole or not at all: MMEngine's CheckpointHook, which a config names or leaves to the
    default, becomes :class:`AtomicCheckpointHook`. Subclasses stay as they are."""
    cfg.default_hooks = cfg.get('default_hooks') or {}
    hook = cfg.default_hooks.setdefault('checkpoint', dict(type='CheckpointHook'))
    if hook is not None and hook.get('type') in ('CheckpointHook', 'mmengine.CheckpointHook', CheckpointHook):
        hook['type'] = 'mmguard.AtomicCheckpointHook'


@contextmanager
def writing_checkpoints(folder: str | Path) -> Iterator[None]:
    """Turn the error of a checkpoint that cannot be written into a :class:`CheckpointError` that names it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f'{error.filename or folder} cannot be written ({error.strerror}); the '
            'checkpoints before it are whole: free or repair the disk, then continue with --resume'
        ) from error


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of wrappers for several processes and for tests of several views."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def backbone_settings(model: nn.Module) -> dict[str, dict]:
    """The type and the settings of each part of a model that :func:`loads_strictly`, by its name."""
    found = {name: module.settings_note for name, module in model.named_modules() if loads_strictly(module)}
    return plain_names(found, 'the model')


def accumulative_counts(runner: Runner) -> int:
    """How many steps of a training give the gradients of one step of the optimizer."""
    return (runner.cfg.get('optim_wrapper') or {}).get('accumulative_counts', 1)


def writes_at_this_step(runner: Runner) -> bool:
    """Whether a hook writes a checkpoint at the end of this step. Those by epochs do so at the end of an epoch."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook) and not hook.by_epoch]
    return any(
        hook.is_last_train_iter(runner) or hook.every_n_train_iters(runner, hook.interval, hook.save_begin)
        for hook in hooks
    )


def training_note(runner: Runner) -> dict[str, object]:
    """What no tensor shows, by name: the number of training images, ``accumulative_counts``, and ``training_note`` of
    the model and of the datasets.

    A resumed training is compared in them. They are plain Python, so that no code is needed to read them.
    """
    dataset = runner.train_dataloader.dataset
    note = dict(images=len(dataset)) if isinstance(dataset, Sized) else {}
    note['accumulative_counts'] = accumulative_counts(runner)
    for part in (unwrapped(runner.model), *inner_datasets(dataset)):
        note.update(getattr(part, 'training_note', {}))
    return note


@contextmanager
def locked(folders: Iterable[str | Path]) -> Iterator[None]:
    """Hold the locks of the folders that a training writes checkpoints to; they end with the process, however it ends.

    What killed trainings have left of unfinished checkpoints is removed.

    Args:
        folders: are made if they are missing. The lock of each is its file ``.lock``; ``.lock.txt`` names the holder.

    Raises:
        InputError: if a folder cannot be made, or if another process holds its lock.
    """
    with ExitStack() as stack:
        for folder in map(Path, folders):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (OSError, ValueError) as error:
                raise InputError(
                    f'the work folder {folder} cannot be made ({describe(error)}): give another --work-dir'
                ) from error
            holder = folder / '.lock.txt'
            try:
                stack.enter_context(FileLock(folder / '.lock').acquire(timeout=LOCK_TIMEOUT))
            except Timeout:
                who = holder.read_text('utf-8', errors='replace').strip() if holder.is_file() else 'another process'
                raise InputError(
                    f'{folder} is in use by another training ({who}): give another --work-dir, or end that training'
                ) from None
            except (NotImplementedError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                    raise
                warn(f'{folder} cannot be locked ({describe(error)}): start no second training in it')
            else:
                holder.write_text(f'process {os.getpid()} on {socket.gethostname()}\n', 'utf-8')
                for part in folder.glob('*.pth*.part'):
                    shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
        yield
