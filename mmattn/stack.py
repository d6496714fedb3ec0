"""Which of OpenMMLab's packages mmattn needs, told when they are needed, and what differs between versions of torch."""
import argparse
import codecs
import importlib
import pickle
import re
import types
from pathlib import Path

import numpy as np
import torch

#: import name -> (lowest version that serves, what to install in either family)
PACKAGES = {
    'mmengine': ('0.10.0', 'mmengine or onedl-mmengine'),
    'mmcv': ('2.1.0', 'mmcv or onedl-mmcv'),
    'mmdet': ('3.3.0', 'mmdet or onedl-mmdetection'),
    'mmseg': ('1.2.0', 'mmsegmentation or onedl-mmsegmentation'),
}

#: whether torch.compile or torch.export is tracing
is_compiling = getattr(torch.compiler, 'is_compiling', None) or torch._utils.is_compiling  # torch 2.1 and 2.2

#: the operator of fused attention on the CPU, which torch's counter of operations leaves out; torch 2.1 has none
cpu_attention = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)

#: torch.export's name for a size that may be any; before torch 2.6 there is none
any_size = getattr(getattr(getattr(torch, 'export', None), 'Dim', None), 'DYNAMIC', None)


def require(package: str, purpose: str) -> None:
    """Make sure that a package of OpenMMLab's is there and new enough.

    Args:
        package: import name, a key of ``PACKAGES``.
        purpose: what it is needed for, completing "... needs".

    Raises:
        ImportError: in one sentence, what is missing or too old, and what to install.
    """
    lowest, distribution = PACKAGES[package]
    try:
        version = importlib.import_module(package).__version__
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f'{purpose} needs {package} {lowest} or newer, which is not installed: '
                          f'pip install {distribution}, whichever family the environment has.') from None
    if _numbers(version) < _numbers(lowest):
        raise ImportError(f'{purpose} needs {package} {lowest} or newer, but {version} is installed: upgrade '
                          f'{distribution}, whichever the environment has.')


def require_ops(purpose: str) -> None:
    """Make sure that mmcv has its compiled operators (NMS, RoIAlign ...).

    Raises:
        ImportError: in one sentence, that they are missing, and what to install.
    """
    try:
        importlib.import_module('mmcv.ops')
    except ImportError as error:
        raise ImportError(f'{purpose} needs the compiled operators of mmcv, which do not import ({error}): install the '
                          f'full mmcv or onedl-mmcv, compiled for the torch at hand, not mmcv-lite.') from None


def cpu_shards() -> bool:
    """Whether this torch's FSDP runs on the CPU."""
    try:
        torch.cpu.Stream(priority=-1)
    except TypeError:
        return False
    return True


def load_weights_only(file: Path, map_location: str | torch.device) -> object:
    """``torch.load`` with ``weights_only``, which lets through, beside tensors, what trainers keep with the weights:
    MMEngine's history of logs, NumPy's arrays and numbers, timm's arguments. None of these can run code.

    torch can be told what to let through from 2.6 on; for an older one, pickle is restricted to the same.

    Raises:
        pickle.UnpicklingError: naming an object that is not let through; torch raises others if the file is damaged.
    """
    allowed = _allowed_globals()
    if _numbers(torch.__version__) >= (2, 6):
        with torch.serialization.safe_globals([(value, name) for name, value in allowed.items()]):
            return torch.load(file, map_location=map_location, weights_only=True)
    allowed.update(torch._weights_only_unpickler._get_allowed_globals())

    class Unpickler(pickle.Unpickler):

        def find_class(self, module, name):
            name = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
            if name not in allowed:
                raise pickle.UnpicklingError(f'unsupported class {name}')
            return allowed[name]

    restricted = types.ModuleType('restricted_pickle')
    restricted.Unpickler, restricted.load = Unpickler, lambda *args, **kwargs: Unpickler(*args, **kwargs).load()
    return torch.load(file, map_location=map_location, pickle_module=restricted, weights_only=False)


def _allowed_globals() -> dict[str, object]:
    """What may stand beside tensors in a checkpoint, by the name that files have for it."""
    from mmengine.logging import HistoryBuffer
    core = np._core if _numbers(np.__version__) >= (2,) else np.core
    types_ = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat'] + '?'}
    allowed = {f'{value.__module__}.{value.__qualname__}': value
               for value in (HistoryBuffer, argparse.Namespace, np.ndarray, np.dtype, *types_)}
    for name in ('_reconstruct', 'scalar'):  # NumPy 1 and 2 have them in different places
        for package in ('core', '_core'):
            allowed[f'numpy.{package}.multiarray.{name}'] = getattr(core.multiarray, name)

    def statistic(owner: object, name: str) -> object:
        if owner is HistoryBuffer and name in ('min', 'max', 'mean', 'current'):
            return getattr(owner, name)
        raise pickle.UnpicklingError('unsupported class builtins.getattr')

    # A history names its statistics in this way; the real getattr would reach anything.
    return {**allowed, 'builtins.getattr': statistic, '_codecs.encode': codecs.encode}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r'\d+', version)[:3])
