"""What the Triton kernels of all operators share. Only their files import it: Triton is not everywhere."""

import inspect
import os
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from ..errors import describe
from .derivatives import once, refuse

#: whether kernels run on the CPU, which Triton decides when it is imported
INTERPRETED = tl.constexpr(os.environ.get('TRITON_INTERPRET') == '1')


@triton.jit
def product(a, b, total=None):
    """``a @ b``, added to ``total``, with sums in float32: on tensor cores, or for float32 without."""
    if INTERPRETED:  # There, tl.dot takes the bits of bfloat16 for whole numbers.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision='ieee')


def limited(kernel, registers: int = 128, num_warps: int = 4, **options: int):
    """Sets the warps of a program and limits the registers of a thread, as was fastest on an H100; ``options`` are
    further ones of ``triton.Config``."""
    limit = dict(maxnreg=registers) if 'maxnreg' in inspect.signature(triton.Config).parameters else {}  # not Triton 2
    # Nothing is measured for one choice.
    return triton.autotune([triton.Config({}, num_warps=num_warps, **limit, **options)], key=[])(kernel)


def launch(kernel, grid: tuple[int, ...], *args, **kwargs) -> None:
    """Run a kernel inside a function of :func:`operators`. Errors are those of :func:`run`."""
    if hasattr(torch.library, 'triton_op') and os.environ.get('TRITON_INTERPRET') != '1':
        kernel = torch.library.wrap_triton(kernel)
    run(kernel, grid, *args, **kwargs)


def run(kernel, grid: tuple[int, ...], *args, **kwargs) -> None:
    """Run a kernel where nothing is traced.

    Raises:
        RuntimeError: if it cannot be compiled or launched here.
    """
    try:
        kernel[grid](*args, **kwargs)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # Triton, its compilers and the driver raise many kinds.
        raise RuntimeError(
            f"backend 'triton' failed with {describe(error)[:500]}: to go on without it, set MMATTN_TRITON=off in the "
            'environment, or choose another backend of the operator'
        ) from error


def operators(
    name: str, forward: Callable, setup_context: Callable, backward: Callable, gradients: Callable
) -> tuple[Callable, Callable]:
    """An operator torch.ops.mmattn.NAME whose kernels torch.compile sees and keeps, and the one of its gradients.

    Before torch 2.6 they are functions that torch.compile does not look into.

    Args:
        name: of the operator.
        forward, gradients: launch kernels; their annotations are the schemas.
        setup_context, backward: as those of a ``torch.autograd.Function``. The backward pass calls the second operator,
            which has no derivatives.
    """
    if hasattr(torch.library, 'triton_op'):
        operator = torch.library.triton_op(f'mmattn::{name}', forward, mutates_args=())
        operator.register_autograd(backward, setup_context=setup_context)
        of_gradients = torch.library.triton_op(f'mmattn::{name}_gradient', gradients, mutates_args=())
        of_gradients.register_autograd(refuse)
        return operator, of_gradients
    parts = dict(forward=forward, setup_context=setup_context, backward=backward)
    parts = {key: staticmethod(function) for key, function in parts.items()}
    return type(name, (torch.autograd.Function,), parts).apply, once(gradients)
