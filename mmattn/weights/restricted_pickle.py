"""torch.load without running code in a file."""

import argparse
import codecs
import pickle
import types
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from ..packages import version_numbers


def load_weights_only(file: Path, map_location: str | torch.device) -> object:
    """``torch.load`` with ``weights_only``, which also allows what trainers keep beside the weights: MMEngine's history
    of logs, the milestones of a schedule, NumPy's arrays and numbers, timm's arguments. None of these can run code.

    torch takes a list of allowed classes since version 2.6. For older versions, pickle is restricted to the same list.

    Raises:
        pickle.UnpicklingError: naming an object that is not allowed; torch raises other errors if the file is damaged.
    """
    allowed = _allowed_globals()
    if version_numbers(torch.__version__) >= (2, 6):
        with torch.serialization.safe_globals([(value, name) for name, value in allowed.items()]):
            return torch.load(file, map_location=map_location, weights_only=True)
    allowed.update(torch._weights_only_unpickler._get_allowed_globals())

    unpickler, restricted = restricted_unpickler(allowed), types.ModuleType('restricted_pickle')
    restricted.Unpickler, restricted.load = unpickler, lambda *args, **kwargs: unpickler(*args, **kwargs).load()
    return torch.load(file, map_location=map_location, pickle_module=restricted, weights_only=False)


def restricted_unpickler(allowed: dict[str, object]) -> type[pickle.Unpickler]:
    """An ``Unpickler`` that raises ``pickle.UnpicklingError`` for classes and functions that are not in ``allowed``."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            name = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
            if name not in allowed:
                raise pickle.UnpicklingError(f'unsupported class {name}')
            return allowed[name]

    return Unpickler


def _allowed_globals() -> dict[str, object]:
    """What is allowed beside tensors in a checkpoint, by its name in files."""
    from mmengine.logging import HistoryBuffer

    core = np._core if version_numbers(np.__version__) >= (2,) else np.core
    types_ = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat'] + '?'}
    allowed = {
        f'{value.__module__}.{value.__qualname__}': value
        for value in (HistoryBuffer, Counter, argparse.Namespace, np.ndarray, np.dtype, *types_)
    }
    for name in ('_reconstruct', 'scalar'):  # in different places in NumPy 1 and 2
        for package in ('core', '_core'):
            allowed[f'numpy.{package}.multiarray.{name}'] = getattr(core.multiarray, name)

    def statistic(owner: object, name: str) -> object:
        if owner is HistoryBuffer and name in ('min', 'max', 'mean', 'current'):
            return getattr(owner, name)
        raise pickle.UnpicklingError('unsupported class builtins.getattr')

    # A history names its statistics by getattr; the real getattr would give access to everything.
    return {**allowed, 'builtins.getattr': statistic, '_codecs.encode': codecs.encode}
