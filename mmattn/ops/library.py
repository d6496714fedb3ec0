"""The C++ code of all kernel.cpp, which setup.py compiles where mmattn is installed.

Without a compiler there is no library, and operators choose other paths. Functions are plain C and called through
ctypes, so that one library serves every version of torch and of Python. They trust their arguments: the operators of
torch below check them.
"""

import ctypes
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from ..errors import describe, warn
from .backend import CannotServe
from .derivatives import once
from .tracing import is_exporting, is_transforming

#: of the arguments of the library's functions, as in library.cpp. A change of them raises both.
VERSION = 4


def _load(path: Path) -> ctypes.CDLL | None:
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        if getattr(library, 'mmattn_version', int)() == VERSION:
            return library
        problem = 'it was compiled from another version of mmattn'
    except OSError as error:
        problem = describe(error)
    warn(f'{path} cannot be used, and slower code serves instead: {problem}. To compile it, install mmattn again.')
    return None


_C = _load(Path(__file__).with_name('_cpu.abi3.so'))
HAS_LIBRARY = _C is not None
#: operators of torch's that call the library, so that profiles and counts of operations see them
OPERATORS = torch.library.Library('mmattn', 'FRAGMENT')


def takes(*tensors: Tensor, dtypes: Collection[torch.dtype] = (torch.float32,)) -> bool:
    """Whether the library serves tensors: plain ones, not fake tensors or other subclasses, on the CPU, of ``dtypes``.

    Since torch 2.7, torch.compile keeps calls of the library in its graphs.
    """
    plain = all(type(x) is Tensor and x.device.type == 'cpu' and x.dtype in dtypes for x in tensors)
    return HAS_LIBRARY and plain and not is_exporting() and not is_transforming()


def check_takes(*tensors: Tensor, dtypes: Collection[torch.dtype] = (torch.float32,)) -> None:
    """Check that the backend 'cpp' can be used; see :func:`takes`.

    Raises:
        CannotServe: if the library was not compiled, or does not serve the tensors.
    """
    if not HAS_LIBRARY:
        raise CannotServe("the library of backend 'cpp' is missing: install a C++ compiler, then mmattn again")
    if not takes(*tensors, dtypes=dtypes):
        kinds = ', '.join(f'{x.dtype} on {x.device}' for x in tensors)
        bits = 'at most 32 bits' if len(dtypes) > 1 else '32 bits'
        raise CannotServe(
            f"backend 'cpp' takes tensors of {bits} on the CPU, and is not for export or torch.func; here are {kinds}"
        )


def operator(
    schema: str,
    check: Callable,
    function: Callable,
    empty: Callable,
    backward: Callable | None = None,
    dtypes: Collection[torch.dtype] = (torch.float32,),
) -> Callable:
    """Define an operator torch.ops.mmattn.NAME, whose arguments are tensors or None, and last one number or more.

    Args:
        schema: with its name, as in torch.
        check: raises a ValueError if arguments do not fit; their dtypes and devices are checked before.
        function: calls the library.
        empty: makes results of the same shapes, for graphs.
        backward: the gradients of the tensors, from those of the results and all arguments. None if the operator gives
            gradients itself that have none.
        dtypes: that it takes, of all tensors the same.

    Returns:
        the operator.
    """
    OPERATORS.define(schema)
    name = schema.partition('(')[0]
    overload = getattr(torch.ops.mmattn, name).default
    tensors = sum(str(argument.type) != 'int' for argument in overload._schema.arguments)

    def checked(kernel: Callable) -> Callable:
        def run(*arguments: Tensor | int | None) -> Tensor | list[Tensor]:
            _check_tensors(overload._schema, arguments[:tensors], dtypes)
            check(*arguments)
            return kernel(*arguments)

        return run

    def below(*arguments: Tensor | int | None) -> Tensor | tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            out = overload(*arguments)
        return tuple(out) if isinstance(out, list) else out

    def forward(ctx, *arguments: Tensor | int | None) -> Tensor | tuple[Tensor, ...]:
        ctx.save_for_backward(*arguments[:tensors])
        ctx.numbers = arguments[tensors:]
        return below(*arguments)

    def differentiate(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(*grads, *ctx.saved_tensors, *ctx.numbers), *[None] * len(ctx.numbers)

    parts = dict(forward=staticmethod(forward), backward=staticmethod(differentiate))
    function_of = once(below) if backward is None else type(name, (torch.autograd.Function,), parts).apply

    def derived(*arguments: Tensor | int | None) -> Tensor | list[Tensor]:
        out = function_of(*arguments)
        return list(out) if isinstance(out, tuple) else out

    OPERATORS.impl(name, checked(function), 'CPU')
    OPERATORS.impl(name, checked(empty), 'Meta')
    OPERATORS.impl(name, derived, 'Autograd')
    return overload


def _check_tensors(
    schema: torch._C.FunctionSchema, arguments: tuple[Tensor | None, ...], dtypes: Collection[torch.dtype]
) -> None:
    for x, argument in zip(arguments, schema.arguments):
        if x is None and str(argument.type) == 'Tensor':  # torch lets None pass
            raise ValueError(f'{argument.name} of {schema.name} must be a tensor, not None')
    tensors = [x for x in arguments if x is not None]
    if tensors[0].dtype not in dtypes or len({(x.dtype, x.device) for x in tensors}) > 1:
        given = ', '.join(f'{x.dtype} on {x.device}' for x in tensors)
        names = ' or '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)
        raise ValueError(f'{schema.name} takes {names} tensors on one device; here are {given}')


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
    _, H, W, *sizes = x.shape
    *outside, stride = x.stride()[:3]
    fits, count = outside == [H * W * stride, W * stride], 1
    for size, step in zip(reversed(sizes), reversed(x.stride()[3:])):
        fits, count = fits and step == count, count * size
    if fits:
        return x, stride  # a part of a fused projection, too
    # A map one pixel wide counts as contiguous with any stride of its columns, which kernels read: view() sets it.
    return x.contiguous().view(-1).view(x.shape), count
