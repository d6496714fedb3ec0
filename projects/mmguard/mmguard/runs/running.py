"""Around a run of MMEngine: what our tools set up and undo, and how their errors end."""

import errno
import gc
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from mmengine.runner import CheckpointLoader, Runner
from torch import distributed

from ..checks.config_types import type_name
from ..checks.config_values import metric_configs
from ..checks.datasets import MetricCheckHook, check_built_datasets, check_files
from ..checks.pixels import check_pixels, other_normalisation
from ..errors import InputError, describe, warn
from ..outputs import check_name
from ..weights import read_file
from .accumulation import AccumulationHook
from .batches import BatchNormHook
from .checkpoints import REMOVED, locked
from .configs import check_pretrained, check_sharding
from .divergence import DivergenceHook
from .resuming import CheckpointCheckHook, check_unused, checkpoint_folders, prepare_resume
from .scores import ScoreHook
from .screen import escape_unknown_characters, keep_all_characters, quiet, say_what_is_unusual
from .seeds import SeedHook
from .unused import UnusedParameterHook, unfinished, unused_sentence
from .written import WrittenConfig, without_secrets_factory

#: The system refuses: no space, quota, permission, read-only file system, too many open files.
SYSTEM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE)
#: what gloo and NCCL say when the process at the other end of a connection has ended
PEER_GONE = re.compile(r'gloo.*(closed|reset) by peer|remote process exited', re.IGNORECASE)
#: what MMEngine's loaders of checkpoints are replaced for in a run that trusts its checkpoints
SOURCES = ['', 'http://', 'https://', 'torchvision://']
#: launcher -> environment variable with the number of the process
RANK = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK')


def run_tool(main: Callable[[], None]) -> None:
    """Call ``main``; an :class:`InputError` or a refusal of the system ends it in a sentence, with exit status 1.
    Ctrl-C ends it with 130 and one line, which has the text of the KeyboardInterrupt, if any.

    Every other error is a mistake of ours, or of a package that we use, and keeps its traceback. What is known and
    harmless is not shown, see :mod:`mmguard.runs.screen`.
    """
    escape_unknown_characters()
    say_what_is_unusual(main.__code__.co_filename)
    try:
        with quiet():
            main()
    except SystemExit:
        raise
    except BaseException as error:
        if interruption := interruption_of(error):
            print(': '.join(['Interrupted', *map(str, interruption.args)]) + '.', file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        if isinstance(error, InputError) or isinstance(error, OSError) and error.errno in SYSTEM_ERRORS:
            sys.exit(describe(error))
        raise


def interruption_of(error: BaseException | None) -> KeyboardInterrupt | None:
    """The Ctrl-C that is an error or led to it: MMEngine raises a SyntaxError for one while it formats a config."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def running(cfg: Config, trusted: bool = False) -> Iterator[dict[str, object]]:
    """Set up what a run by our tools needs in this process, and undo it at the end.

    - MMEngine's ``CheckpointLoader``, which would run code in a checkpoint, reads as :func:`mmguard.weights.read_file`
      does. This is the only replacement in another package: no setting covers all places that read checkpoints.
    - Without an accelerator, launcher "pytorch" gets a process group of gloo. MMEngine would select a GPU first. No
      process leaves it before all have done their work, and no thread of it is left when the interpreter ends.
    - Python's logging does not print a traceback for each line that cannot be written, as on a full disk. The run
      fails at its next checkpoint, with one sentence.
    - What is logged has no secrets, as the query of a signed address.

    Args:
        cfg: of the run, from :func:`mmguard.runs.configs.load_config`.
        trusted: run the code in a checkpoint, see :func:`mmguard.weights.read_file`.

    Yields:
        an empty dict for contents of checkpoints, by path. MMEngine gets each once, in place of reading the file again.
    """
    contents: dict[str, object] = {}

    def load_checkpoint(path: str, map_location: str | None = None) -> object:
        # Given away once, so that training has the memory. The contents are on the CPU, whatever map_location is: a
        # model and an optimizer copy tensors to where their own are.
        return contents.pop(path) if path in contents else read_file(path, map_location, trusted)

    loaders, raise_exceptions = CheckpointLoader._schemes.copy(), logging.raiseExceptions
    factory = logging.getLogRecordFactory()
    starts_group = cfg.launcher == 'pytorch' and get_device() == 'cpu' and not distributed.is_initialized()
    try:
        # MMEngine's own loaders of other addresses, such as s3://, run the code in a file.
        of_mmengine = [scheme for scheme, loader in loaders.items() if loader.__module__.startswith('mmengine.')]
        CheckpointLoader.register_scheme(SOURCES if trusted else of_mmengine, load_checkpoint, force=True)
        logging.raiseExceptions = False
        logging.setLogRecordFactory(without_secrets_factory(factory))
        if starts_group:
            distributed.init_process_group('gloo')
        yield contents
        if starts_group:
            distributed.barrier()
    except RuntimeError as error:
        if isinstance(error, InputError) or not PEER_GONE.search(str(error)):
            raise
        raise InputError('another process of this run has ended: its last message says why') from error
    finally:
        CheckpointLoader._schemes = loaders  # no public method returns or removes a loader
        logging.raiseExceptions = raise_exceptions
        logging.setLogRecordFactory(factory)
        if starts_group and distributed.is_initialized():
            gc.collect()  # The cycles of references of a runner hold the group, and so its threads.
            distributed.destroy_process_group()


def train(cfg: Config, resume: str | None = None, trusted: bool = False, hooks: Sequence[Hook] = ()) -> None:
    """Train the model of a config.

    Args:
        cfg, trusted: see :func:`running`.
        resume: checkpoint to resume from; "auto" is the newest in the work folder. The default is what cfg says.
        hooks: are added to those of the config.

    Raises:
        InputError: if another training runs in the work folder, or was there and is not resumed; if the folder is
            removed; if a data worker is killed; if the training diverges; see
            :func:`mmguard.runs.configs.check_sharding`.
        CheckpointError: see ``prepare_resume`` and ``CheckpointCheckHook`` of :mod:`mmguard.runs.resuming`.
    """
    resume = resume or cfg.get('resume')
    if resume and not isinstance(resume, str):
        resume = cfg.get('load_from') or 'auto'
    check_sharding(cfg)
    check_pixels(cfg)
    check_files(cfg, 'train', 'val')
    for folder in checkpoint_folders(cfg):
        check_name(folder)  # MMEngine notes the last checkpoint in a text file
    # Only the first process writes checkpoints.
    first = cfg.launcher == 'none' or os.environ.get(RANK[cfg.launcher], '0') == '0'
    with running(cfg, trusted) as contents, locked(checkpoint_folders(cfg) if first else ()):
        if resume:
            contents.update(prepare_resume(cfg, None if resume == 'auto' else resume, trusted))
        else:
            check_pretrained(cfg)
            check_unused(cfg)
        # FSDP needs MMEngine's FlexibleRunner
        written = WrittenConfig.of(cfg)
        runner = RUNNERS.build(written) if 'runner_type' in cfg else Runner.from_cfg(written)
        keep_all_characters(runner.logger)
        for hook in hooks:
            runner.register_hook(hook)
        for sentence in other_normalisation(cfg, runner.model):
            warn(sentence)
        try:
            _run(runner, runner.train)
        except FileNotFoundError as error:
            folder = os.path.dirname(error.filename or '')  # most often that of the log
            if not folder.startswith(runner.work_dir) or os.path.isdir(folder):
                raise
            raise InputError(REMOVED.format(folder)) from error
        del runner  # before the process group


def test(cfg: Config, checkpoint: str, trusted: bool = False, hooks: Sequence[Hook] = ()) -> None:
    """Test the model of a config with the weights of a checkpoint. Detectors get the average precision of each class.

    Args:
        cfg, trusted: see :func:`running`.
        checkpoint: see :mod:`mmguard.weights.sources`.
        hooks: are added to those of the config.

    Raises:
        InputError: if a data worker is killed.
        CheckpointError: see :class:`mmguard.runs.resuming.CheckpointCheckHook`.
    """
    cfg.load_from, cfg.resume = checkpoint, False
    for _, metric in metric_configs(cfg, 'test'):
        if type_name(metric.get('type')).removeprefix('Checked') == 'CocoMetric':
            metric.setdefault('classwise', True)
    check_files(cfg, 'test')
    with running(cfg, trusted):
        runner = Runner.from_cfg(WrittenConfig.of(cfg))
        keep_all_characters(runner.logger)
        for hook in hooks:
            runner.register_hook(hook)
        _run(runner, runner.test)
        del runner  # before the process group


def stop_workers(runner: Runner) -> None:
    """End the data workers that wait for another epoch. Garbage collection would end them, too, but might close the
    pipes of a thread that still writes, which then prints a traceback."""
    for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
        for loader in (getattr(loop, 'dataloader', None), getattr(loop, 'dataloader_iterator', None)):
            stop = getattr(getattr(loader, '_iterator', None), '_shutdown_workers', None)
            if stop is not None:
                stop()


class FolderHook(Hook):
    """Ends a training whose work folder is removed. Otherwise MMEngine would make it again, for what comes next."""

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        for folder in (runner.work_dir, runner.log_dir) if runner.rank == 0 else ():
            if not os.path.isdir(folder):
                raise InputError(REMOVED.format(folder))


def _run(runner: Runner, run: Callable[[], object]) -> None:
    check_built_datasets(runner)
    # MMEngine has written the config, formatted. It would format it again for each checkpoint, in up to a second.
    plain = Config(runner.cfg._cfg_dict, filename=runner.cfg.filename, format_python_code=False)
    runner.cfg = WrittenConfig.of(plain)
    for hook in (
        MetricCheckHook(),
        CheckpointCheckHook(),
        SeedHook(),
        DivergenceHook(),
        AccumulationHook(),
        UnusedParameterHook(),
        BatchNormHook(),
        FolderHook(),
    ):
        runner.register_hook(hook, 'HIGHEST')
    runner.register_hook(ScoreHook())
    try:
        try:
            run()
            stop_workers(runner)
        except (RuntimeError, OSError, EOFError) as error:  # what the loss of a worker's pipe may raise
            if not isinstance(error, InputError) and not PEER_GONE.search(str(error)):
                time.sleep(1)  # For a dead worker, torch raises another error, at whatever line is running then.
            raise
    except (RuntimeError, OSError, EOFError) as error:
        if (names := unfinished(runner, error)) is not None:  # after the first step
            raise InputError(unused_sentence(runner, names)) from error
        if str(error).startswith('DataLoader worker'):
            what = str(error).strip('. ')
        elif not isinstance(error, RuntimeError) and _is_of_a_pipe(error):
            what = f'DataLoader worker has ended: {describe(error)}'
        else:
            raise
        raise InputError(
            f'{what}; most often memory is short: lower num_workers or batch_size, or give more shared memory '
            '(docker run --shm-size); num_workers=0 shows other reasons'
        ) from error


def _is_of_a_pipe(error: OSError | EOFError) -> bool:
    """Whether reading from a data worker raised it. Torch's own error is lost if it is raised in a destructor."""
    return any(frame.name == '_try_get_data' for frame in traceback.extract_tb(error.__traceback__))
