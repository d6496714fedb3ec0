"""What the Triton kernels of all operators share. Only their files import it: Triton is not everywhere."""

import inspect
import os
from collections.abc import Callable
from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.runtime import driver

from ..errors import describe
from .backend import is_other, on_device
from .derivatives import apply, once, refuse
from .tracing import is_tracing

#: whether kernels run on the CPU, which Triton decides when it is imported
INTERPRETED = tl.constexpr(os.environ.get('TRITON_INTERPRET') == '1')
#: Since Triton 3.4, a compiled kernel takes the arguments that its function has, and hooks of launches are ``knobs``.
KEEPS_LAUNCHES = not INTERPRETED.value and hasattr(triton, 'knobs')
#: Compiled kernels by arguments, at most so many. Each is some hundred bytes, and images of other sizes have others.
MOST_LAUNCHES = 20000
LAUNCHES: dict[tuple, tuple[Callable, tuple, tuple, tuple]] = {}
HAS_OPERATORS = hasattr(torch.library, 'triton_op')


# Those of Triton serve kernels, too, and take ten times as long.
def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


@triton.jit
def product(a, b, total=None):
    """``a @ b``, added to ``total``, with sums in float32: on tensor cores, or for float32 without."""
    if INTERPRETED:  # There, tl.dot takes the bits of bfloat16 for whole numbers.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision='ieee')


@triton.jit
def as_float32(x):
    """An argument that is a float of Python: launches pass it as float32, and torch.compile as float64, in which GPUs
    are slow."""
    return x if INTERPRETED else x.to(tl.float32)  # There, it is still one of Python.


def limited(kernel, registers: int = 128, num_warps: int = 4, **options: int):
    """Sets the warps of a program and limits the registers of a thread, as was fastest on an H100; ``options`` are
    further ones of ``triton.Config``."""
    limit = dict(maxnreg=registers) if 'maxnreg' in inspect.signature(triton.Config).parameters else {}  # not Triton 2
    # Nothing is measured for one choice.
    return triton.autotune([triton.Config({}, num_warps=num_warps, **limit, **options)], key=[])(kernel)


def launch(kernel, grid: tuple[int, ...], *args, **kwargs) -> None:
    """Run a kernel inside a function of :func:`operators`. Errors are those of :func:`run`."""
    if HAS_OPERATORS and not INTERPRETED.value and torch._C._len_torch_dispatch_stack():
        kernel = torch.library.wrap_triton(kernel)
    run(kernel, grid, *args, **kwargs)


def run(kernel, grid: tuple[int, ...], *args, **kwargs) -> None:
    """Run a kernel where nothing is traced, on the GPU of its tensors. ``args`` are its first arguments, ``kwargs`` the
    others and options.

    Triton looks up the compiled kernel at each call, by what it depends on. The same arguments, other than places in
    memory, find it here without that. The launcher takes places as numbers, and then asks no driver for them.

    Raises:
        RuntimeError: if it cannot be compiled or launched here.
    """
    try:
        if not KEEPS_LAUNCHES or torch._C._len_torch_dispatch_stack() or _has_hooks():
            _look_up(kernel, grid, args, kwargs)
            return
        key, values, places, device = [id(kernel), grid, *kwargs.values()], [], 0, None
        for x in args:
            if isinstance(x, Tensor):
                place, device = x.data_ptr(), x.get_device()
                key += x.dtype, device  # Triton refuses those that are not on a GPU.
                values.append(place)
                places |= place
            else:
                key.append(x)
                values.append(x)
        if places % 16:
            key += [x.data_ptr() % 16 for x in args if isinstance(x, Tensor)]
        known = LAUNCHES.get(key := tuple(key))
        if known is None or _has_several_gpus() and device != torch.cuda.current_device():
            compiled = _look_up(kernel, grid, args, kwargs)
            if compiled is not None:
                constants = tuple(kwargs[name] for name in kernel.arg_names[len(args) :])
                if len(LAUNCHES) >= MOST_LAUNCHES:
                    LAUNCHES.clear()
                # without metadata and hooks
                handles = compiled.function, compiled.packed_metadata, None, None, None
                LAUNCHES[key] = compiled.run, (*grid, 1, 1)[:3], handles, constants
            return
        start, sizes, handles, constants = known
        start(*sizes, driver.active.get_current_stream(device), *handles, *values, *constants)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # Triton, its compilers and the driver raise many kinds.
        raise RuntimeError(
            f"backend 'triton' failed with {describe(error)[:500]}: to go on without it, set MMATTN_TRITON=off in the "
            'environment, or choose another backend of the operator'
        ) from error


def _look_up(kernel, grid: tuple[int, ...], args: tuple, kwargs: dict):
    """``kernel[grid](*args, **kwargs)``, which returns what Triton has compiled."""
    given = next((x for x in args if isinstance(x, Tensor)), None)
    with on_device(None if is_other(given) else given):  # Fake tensors launch nothing.
        return kernel[grid](*args, **kwargs)


def _has_hooks() -> bool:
    """Whether launches have hooks, such as those of Triton's profiler."""
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    return bool(getattr(enter, 'calls', enter) or getattr(leave, 'calls', leave))


@cache
def _has_several_gpus() -> bool:
    return torch.cuda.device_count() > 1


def operators(
    name: str, forward: Callable, setup_context: Callable, backward: Callable, gradients: Callable
) -> tuple[Callable, Callable]:
    """An operator and the one of its gradients.

    Where something sees operators, such as torch.compile, fake tensors or a mode that counts operations, they are
    torch.ops.mmattn.NAME and NAME_gradient, whose kernels torch.compile keeps. Else they are functions of autograd:
    operators of torch that are written in Python take several times as long to call. Before torch 2.6, which has no
    such operators, torch.compile does not look into the functions.

    Args:
        name: of the operator.
        forward, gradients: launch kernels; their annotations are the schemas.
        setup_context, backward: as those of a ``torch.autograd.Function``. The backward pass calls the second operator,
            which has no derivatives.
    """

    def run_forward(ctx, *args: object) -> Tensor | tuple[Tensor, ...]:
        out = forward(*args)
        setup_context(ctx, args, out)
        return out

    parts = dict(forward=staticmethod(run_forward), backward=staticmethod(backward))
    function, refusing = partial(apply, type(name, (torch.autograd.Function,), parts)), once(gradients)
    if not HAS_OPERATORS:
        return function, refusing
    operator = torch.library.triton_op(f'mmattn::{name}', forward, mutates_args=())
    operator.register_autograd(backward, setup_context=setup_context)
    of_gradients = torch.library.triton_op(f'mmattn::{name}_gradient', gradients, mutates_args=())
    of_gradients.register_autograd(refuse)

    def call(*args: object) -> Tensor | tuple[Tensor, ...]:
        return (operator if _is_seen(*args) else function)(*args)

    def call_gradients(*args: object) -> tuple[Tensor, ...]:
        if _is_seen(*args):
            return of_gradients(*args)
        return (refusing if torch.is_grad_enabled() else gradients)(*args)

    return call, call_gradients


def _is_seen(*args: object) -> bool:
    """Whether operators go through a tracer, a mode of torch or tensors of their own kind, such as those of shards."""
    if not HAS_OPERATORS:
        return False
    for x in args:
        kind = type(x)
        if kind is not Tensor and kind is not nn.Parameter and isinstance(x, Tensor):
            return True
    return is_tracing() or torch._C._len_torch_dispatch_stack() > 0
