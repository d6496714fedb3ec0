"""torch.load without running code in a file."""

import argparse
import pickle
import pickletools
import re
import types
import zipfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from ..packages import version_numbers

#: what torch allows, and no weights here need: functions that make tensors of any sizes on memory that they do not
#: check, or tensors without values of their own
UNCHECKED = re.compile(
    r'torch\._utils._rebuild_(qtensor|nested_tensor|wrapper_subclass|device_tensor_from_\w+)|torch\.(\w+\.)*[A-Z]\w+Tensor'
)
#: the dtypes of NumPy in a checkpoint: numbers and booleans. An array of objects would be made of pointers.
NUMBERS = {np.dtype(code).str[1:] for code in np.typecodes['AllInteger'] + np.typecodes['AllFloat'] + '?'}


def load_weights_only(file: Path | BinaryIO, map_location: str | torch.device) -> object:
    """``torch.load`` with ``weights_only``, which also allows what trainers keep beside the weights: MMEngine's history
    of logs, the milestones of a schedule, NumPy's arrays and numbers, timm's arguments. None of these can run code.

    torch takes a list of allowed classes since version 2.6. For older versions, pickle is restricted to the same list.

    Raises:
        pickle.UnpicklingError: naming an object that is not allowed; torch raises other errors if the file is damaged.
    """
    allowed = _allowed_globals()
    with torch.sparse.check_sparse_tensor_invariants():  # Indices of a file may be beyond the memory of a tensor.
        if version_numbers(torch.__version__) >= (2, 6):
            _check_names(file)
            with torch.serialization.safe_globals([(value, name) for name, value in allowed.items()]):
                return torch.load(file, map_location=map_location, weights_only=True)
        own = torch._weights_only_unpickler._get_allowed_globals()
        allowed.update((name, value) for name, value in own.items() if not UNCHECKED.fullmatch(name))
        unpickler, restricted = restricted_unpickler(allowed), types.ModuleType('restricted_pickle')
        restricted.Unpickler, restricted.load = unpickler, lambda *args, **kwargs: unpickler(*args, **kwargs).load()
        return torch.load(file, map_location=map_location, pickle_module=restricted, weights_only=False)


def _check_names(file: Path | BinaryIO) -> None:
    """Check that the pickles in a file name nothing of ``UNCHECKED``, which torch's own list cannot leave out."""
    with ExitStack() as stack:
        opened = file if not isinstance(file, Path) else stack.enter_context(open(file, 'rb'))
        if zipfile.is_zipfile(opened):
            archive = stack.enter_context(zipfile.ZipFile(opened))
            names = [record for record in archive.infolist() if record.filename.endswith('data.pkl')]
            pickles = [stack.enter_context(archive.open(record)) for record in names]
        else:  # three pickles about the file, the contents, and the names of storages
            pickles = [opened] * 5
        opened.seek(0)
        for each in pickles:
            for operation, argument, _ in pickletools.genops(each):
                name = str(argument).replace(' ', '.')
                if operation.name == 'GLOBAL' and UNCHECKED.fullmatch(name):
                    raise pickle.UnpicklingError(f'unsupported class {name}')
        opened.seek(0)


def restricted_unpickler(allowed: dict[str, object]) -> type[pickle._Unpickler]:
    """An ``Unpickler`` that raises ``pickle.UnpicklingError`` for classes and functions that are not in ``allowed``.

    Attributes are set on objects of these classes only, not on the classes themselves or on functions. pickle's faster
    Unpickler cannot be restricted in this, and reserves memory for as many objects as a file names.
    """

    class Unpickler(pickle._Unpickler):
        dispatch = dict(pickle._Unpickler.dispatch)

        def find_class(self, module: str, name: str) -> object:
            name = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
            if name not in allowed:
                raise pickle.UnpicklingError(f'unsupported class {name}')
            return allowed[name]

        def load_build(self) -> None:
            kind = type(self.stack[-2])
            if not any(value is kind for value in allowed.values()):
                raise pickle.UnpicklingError(f'unsupported class {kind.__module__}.{kind.__qualname__} with attributes')
            super().load_build()

        dispatch[pickle.BUILD[0]] = load_build

    return Unpickler


class DType:
    """A dtype of NumPy in a file. Its own would take any flags and sizes, and then read beyond the memory of an array.

    Args:
        code: one of ``NUMBERS``.

    Raises:
        pickle.UnpicklingError: if it is another dtype.
    """

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if not isinstance(code, str) or code not in NUMBERS:
            raise pickle.UnpicklingError(f'unsupported class numpy.dtype <{str(code)[:50]}>')
        self.value = np.dtype(code)

    def __setstate__(self, state: object) -> None:
        """Take the byte order, and nothing else."""
        if not isinstance(state, tuple) or len(state) != 8 or state[1] not in ('<', '>', '|', '='):
            raise pickle.UnpicklingError('unsupported class numpy.dtype <with settings of its own>')
        if state[2:] != (None, None, None, -1, -1, 0):
            raise pickle.UnpicklingError('unsupported class numpy.dtype <with fields or flags>')
        self.value = self.value.newbyteorder(state[1])

    def __reduce__(self) -> tuple:
        return self.value.__reduce__()


class Array(np.ndarray):
    """An array of numbers in a file, which copies, operators and pickle turn into one of NumPy's own class.

    A file can neither call it, as that would let it choose an address, nor give it values a second time.
    """

    __array_priority__ = -1.0

    def __new__(cls, *_: object, **__: object) -> 'Array':
        raise pickle.UnpicklingError('unsupported class numpy.ndarray <as a function>')

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or self.size or not self.flags.owndata:
            raise pickle.UnpicklingError('an array is given values twice, or no values')
        _, shape, dtype, column_order, values = state
        if type(dtype) is not DType or type(values) is not bytes:
            raise pickle.UnpicklingError('an array has no dtype or no values')
        super().__setstate__((1, shape, dtype.value, bool(column_order), values))

    def __reduce_ex__(self, protocol: int) -> tuple:
        return np.array(self, subok=False).__reduce_ex__(protocol)


def _reconstruct(kind: object, shape: object, dtype: object) -> Array:
    """NumPy's function of this name, which makes an empty array; its values follow in the file."""
    if kind is not Array:
        raise pickle.UnpicklingError(f'unsupported class {kind!r}')
    return np.ndarray.__new__(Array, (0,), np.int8)


def _scalar(dtype: object, value: object = b'') -> np.generic:
    """NumPy's function of this name, which makes a number."""
    if type(dtype) is not DType or type(value) is not bytes or len(value) != dtype.value.itemsize:
        raise pickle.UnpicklingError('a number has no dtype, or no bytes')
    return np.frombuffer(value, dtype.value)[0]


def _encode(text: str, encoding: str) -> bytes:
    """``_codecs.encode``, by which pickle writes bytes for Python 2."""
    if not isinstance(text, str) or encoding != 'latin1':
        raise pickle.UnpicklingError('unsupported class _codecs.encode')
    return text.encode('latin1')


def _allowed_globals() -> dict[str, object]:
    """What is allowed beside tensors in a checkpoint, by its name in files."""
    from mmengine.logging import HistoryBuffer

    def statistic(owner: object, name: str) -> object:
        if owner is HistoryBuffer and name in ('min', 'max', 'mean', 'current'):
            return getattr(owner, name)
        raise pickle.UnpicklingError('unsupported class builtins.getattr')

    allowed = {
        f'{value.__module__}.{value.__qualname__}': value for value in (HistoryBuffer, Counter, argparse.Namespace)
    }
    for package in ('core', '_core'):  # in different places in NumPy 1 and 2
        allowed[f'numpy.{package}.multiarray._reconstruct'] = _reconstruct
        allowed[f'numpy.{package}.multiarray.scalar'] = _scalar
    allowed['builtins.bytes'] = lambda: b''  # of an array without values; the real bytes would take any size
    allowed.update({'numpy.ndarray': Array, 'numpy.dtype': DType, '_codecs.encode': _encode})
    # A history names its statistics by getattr; the real getattr would give access to everything.
    return {**allowed, 'builtins.getattr': statistic}
