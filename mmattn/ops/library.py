"""The C++ code of csrc/, which setup.py compiles where mmattn is installed.

Without a compiler there is no library, and operators choose other paths. Functions are plain C and called through
ctypes, so that one library serves every version of torch.
"""

import ctypes
import math
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .tracing import is_exporting

try:
    _C = ctypes.CDLL(str(Path(__file__).with_name('_cpu' + sysconfig.get_config_var('EXT_SUFFIX'))))
except OSError:  # not compiled, or for another machine
    _C = None
HAS_LIBRARY = _C is not None
#: operators of torch's that call the library, so that profiles and counts of operations see them
OPERATORS = torch.library.Library('mmattn', 'FRAGMENT')


def takes(*tensors: Tensor) -> bool:
    """Whether the library serves tensors: plain ones, not fake tensors or other subclasses, of float32 on the CPU.

    Since torch 2.7, torch.compile keeps calls of the library in its graphs.
    """
    plain = all(type(x) is Tensor and x.device.type == 'cpu' and x.dtype == torch.float32 for x in tensors)
    return HAS_LIBRARY and plain and not is_exporting()


def check_takes(*tensors: Tensor) -> None:
    """Check that the backend 'cpp' can be used.

    Raises:
        ValueError: if the library was not compiled, or does not serve the tensors.
    """
    if not HAS_LIBRARY:
        raise ValueError("the library of backend 'cpp' is missing: install a C++ compiler, then mmattn again")
    if not takes(*tensors):
        kinds = ', '.join(f'{x.dtype} on {x.device}' for x in tensors)
        raise ValueError(f"backend 'cpp' takes float32 tensors on the CPU, and is not for export; here are {kinds}")


def operator(schema: str, function: Callable, empty: Callable) -> None:
    """Define an operator torch.ops.mmattn.NAME.

    Args:
        schema: with its name, as in torch.
        function: calls the library.
        empty: makes results of the same shapes, for graphs.
    """
    OPERATORS.define(schema)
    name = schema.partition('(')[0]
    OPERATORS.impl(name, function, 'CPU')
    OPERATORS.impl(name, empty, 'Meta')


def empty_like(x: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and dtype."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def call(name: str, *arguments: Tensor | list[int] | None) -> None:
    """Call a function of the library: with tensors, None, or arrays of int64; and last, the number of threads."""
    converted = [
        (ctypes.c_int64 * len(x))(*x) if isinstance(x, list) else ctypes.c_void_p(None if x is None else x.data_ptr())
        for x in arguments
    ]
    getattr(_C, name)(*converted, ctypes.c_int(torch.get_num_threads()))


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """A map (B, H, W, ...) and the distance of its pixels in memory; a copy if that is not the same everywhere."""
    H, W = x.shape[1:3]
    stride = x.stride(2)
    inside = [math.prod(x.shape[i + 1 :]) for i in range(3, x.dim())]
    if x.stride() == (H * W * stride, W * stride, stride, *inside):
        return x, stride  # a part of a fused projection, too
    return x.contiguous(), math.prod(x.shape[3:])
