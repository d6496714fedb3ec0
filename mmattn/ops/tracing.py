import functools
from collections.abc import Callable

import torch
from torch import Tensor

#: whether torch.compile or torch.export is tracing; torch 2.1 and 2.2 have the function in another place
is_compiling = getattr(torch.compiler, 'is_compiling', None) or torch._utils.is_compiling

_KNOWS_EXPORT = hasattr(torch.compiler, '_is_exporting_flag')


def is_tracing() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace is tracing."""
    return is_compiling() or torch._C._is_tracing()


def is_plain(x: Tensor) -> bool:
    """Whether a tensor made now is worth keeping for later calls on the device of ``x``.

    It is not if a graph is traced or captured, or if operations go through a transform or mode of torch, such as
    ``torch.func.grad`` or fake tensors, which gives tensors of its own kind.
    """
    if is_tracing() or x.is_meta:
        return False
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def stream_of(x: Tensor) -> torch.cuda.Stream | None:
    """The stream that a kept tensor belongs to: work of another one does not wait for the kernels that make it."""
    return torch.cuda.current_stream(x.device) if x.is_cuda else None


def kept(make: Callable, like: Tensor, *sizes: object) -> Tensor | tuple[Tensor, ...]:
    """``make(*sizes, device)`` on the device of a tensor: small constants, kept for later calls where that is possible.

    Args:
        make: a function of a module, whose results are the same for the same arguments.
        like: a tensor of the call.
        sizes: other arguments; they can be compared.
    """
    if is_plain(like):
        return _kept(stream_of(like), make, *sizes, like.device)
    return made(make, *sizes, like.device)


def made(make: Callable, *arguments: object) -> Tensor | tuple[Tensor, ...]:
    return make(*arguments)


@functools.lru_cache(maxsize=128)
def _kept(stream: torch.cuda.Stream | None, *arguments: object) -> Tensor | tuple[Tensor, ...]:
    with torch.inference_mode(False):  # A training step could not use what inference mode makes.
        return made(*arguments)


def is_transforming() -> bool:
    """Whether operations go through a transform of torch.func, such as grad, vmap or jvp."""
    return torch._C._are_functorch_transforms_active()


def is_exporting() -> bool:
    """Whether torch.export is tracing. Before torch 2.7, which can tell, also whether torch.compile is.

    Dynamo takes ``torch.compiler.is_exporting()`` for true in torch.compile, too, but reads its variable.
    """
    return torch.compiler._is_exporting_flag if _KNOWS_EXPORT else is_compiling()
