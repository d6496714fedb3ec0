"""Around a run of MMEngine: what our tools set up and undo, and how their errors end."""

import errno
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import RUNNERS
from mmengine.runner import CheckpointLoader, Runner
from torch import distributed

from ..errors import InputError, describe
from ..weights import read_file
from .checkpoints import prepare_resume
from .configs import is_sharded
from .datasets import InputCheckHook, check_files

#: The system refuses: no space, quota, permission, read-only file system, too many open files.
SYSTEM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE)
#: where MMEngine reads checkpoints from; other addresses, such as openmmlab:// and s3://, keep their loaders
SOURCES = ['', 'http://', 'https://', 'torchvision://']


def run_tool(main: Callable[[], None]) -> None:
    """Call ``main``; an :class:`InputError` or a refusal of the system ends it in a sentence, with exit status 1.

    Every other error is a mistake of ours, or of a package that we use, and keeps its traceback.
    """
    try:
        main()
    except Exception as error:
        if isinstance(error, InputError) or isinstance(error, OSError) and error.errno in SYSTEM_ERRORS:
            sys.exit(describe(error))
        raise


@contextmanager
def running(cfg: Config, trusted: bool = False) -> Iterator[None]:
    """Set up what a run by our tools needs in this process, and undo it at the end.

    - MMEngine's ``CheckpointLoader`` reads checkpoints as :func:`mmattn.weights.read_file` does. This is the only
      replacement in another package. Our tools never run code in a checkpoint, but MMEngine runs it; MMEngine reads
      checkpoints in many places (Runner, ``init_cfg`` of any module) and has no setting for this.
    - Without an accelerator, launcher "pytorch" gets a process group of gloo. MMEngine would select a GPU first.
    - Python's logging does not print a traceback for each line that cannot be written, as on a full disk. The run
      fails at its next checkpoint, with one sentence.

    Args:
        cfg: of the run, from :func:`mmattn.engine.configs.load_config`.
        trusted: run the code in a checkpoint, see :func:`mmattn.weights.read_file`.
    """

    def load_from_mmattn(path: str, map_location: str | None = None) -> object:
        return read_file(path, map_location, trusted)

    loaders, raise_exceptions = CheckpointLoader._schemes.copy(), logging.raiseExceptions
    starts_group = cfg.launcher == 'pytorch' and get_device() == 'cpu' and not distributed.is_initialized()
    try:
        CheckpointLoader.register_scheme(SOURCES, load_from_mmattn, force=True)
        logging.raiseExceptions = False
        if starts_group:
            distributed.init_process_group('gloo')
        yield
    finally:
        CheckpointLoader._schemes = loaders  # no public method returns or removes a loader
        logging.raiseExceptions = raise_exceptions
        if starts_group and distributed.is_initialized():
            distributed.destroy_process_group()


def train(cfg: Config, resume: str | None = None, trusted: bool = False) -> None:
    """Train the model of a config.

    Args:
        cfg: see :func:`running`.
        resume: checkpoint to resume from; "auto" is the newest in the work folder. The default is what cfg says.
        trusted: see :func:`running`.

    Raises:
        InputError: if the config shards the model and there is one process, or a checkpoint to resume from.
        CheckpointError: see :func:`mmattn.engine.checkpoints.prepare_resume`.
    """
    resume = resume or (cfg.get('resume') and (cfg.get('load_from') or 'auto'))
    if is_sharded(cfg) and cfg.launcher == 'none':
        raise InputError('the config shards the model over processes: start it with tools/dist_train.sh')
    if is_sharded(cfg) and resume:
        raise InputError('sharded training cannot be resumed: leave out configs/_base_/fsdp.py to resume it')
    check_files(cfg, 'train', 'val')
    with running(cfg, trusted):
        if resume:
            prepare_resume(cfg, None if resume == 'auto' else resume, trusted)
        # FSDP needs MMEngine's FlexibleRunner
        runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
        runner.register_hook(InputCheckHook(), 'HIGHEST')
        runner.train()


def test(cfg: Config, checkpoint: str, trusted: bool = False) -> None:
    """Test the model of a config with the weights of a checkpoint.

    Args:
        cfg: see :func:`running`.
        checkpoint: file or address.
        trusted: see :func:`running`.
    """
    cfg.load_from = checkpoint
    check_files(cfg, 'test')
    with running(cfg, trusted):
        runner = Runner.from_cfg(cfg)
        runner.register_hook(InputCheckHook(), 'HIGHEST')
        runner.test()
