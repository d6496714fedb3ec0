"""Which path an operator takes: its ``backend``, or for None the fastest of those that take its tensors."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from numbers import Real

import torch
from torch import Tensor, nn

from .tracing import is_exporting, is_tracing, is_transforming

#: torch.compile cannot look for packages while it traces
HAS_TRITON = find_spec('triton') is not None
#: whether Triton (3.2, of torch 2.6) has what kernels need that multiply matrices
HAS_PRODUCTS = HAS_TRITON and hasattr(torch.library, 'triton_op')
HALF = torch.float16, torch.bfloat16
HALF_OR_SINGLE = *HALF, torch.float32  #: what compiled paths take
#: The environment may keep operators from choosing Triton's kernels.
TRITON_IS_OFF = 'MMATTN_TRITON' in os.environ
if TRITON_IS_OFF and os.environ['MMATTN_TRITON'] != 'off':
    raise ValueError(f"MMATTN_TRITON in the environment must be 'off', not {os.environ['MMATTN_TRITON']!r}, or not set")
DTYPES = *HALF_OR_SINGLE, torch.float64


class CannotServe(ValueError):
    """A backend is not for the tensors or for this machine; the message says what it takes."""


def named_backend(backends: Mapping[str, Callable], name: str) -> Callable:
    """The function of a backend.

    Raises:
        ValueError: if the name is unknown; the message lists the known names.
    """
    if not isinstance(name, str) or name not in backends:
        raise ValueError(f'backend must be None or one of {", ".join(backends)}, not {name!r}')
    return backends[name]


def check_maps(dropout_p: float = 0.0, **maps: Tensor | None) -> None:
    """Check maps and tables of an operator, by name, and its rate of dropout.

    Raises:
        ValueError: if they are not floating-point numbers on one device, are empty other than in the first dimension,
            or the rate is not in [0, 1].
    """
    if not (dropout_p == 0 or isinstance(dropout_p, Real) and 0 <= dropout_p <= 1):
        raise ValueError(f'dropout_p must be a number from 0 to 1, not {dropout_p!r}')
    tracing, device = is_tracing(), None
    for x in maps.values():
        if x is None:
            continue
        device = device or x.device
        if x.dtype not in DTYPES or x.device != device or not (tracing or x.numel()):
            _refuse({name: x for name, x in maps.items() if x is not None}, tracing)


def _refuse(given: dict[str, Tensor], tracing: bool) -> None:
    for name, x in given.items():
        if x.dtype not in DTYPES:
            raise ValueError(f'{name} must be floating-point numbers of 16, 32 or 64 bits, not {x.dtype}')
        if not tracing and 0 in x.shape[1:]:
            raise ValueError(f'{name} must have no empty dimension but the first, not {tuple(x.shape)}')
    if len({x.device for x in given.values()}) > 1:
        places = ', '.join(f'{name} on {x.device}' for name, x in given.items())
        raise ValueError(f'all tensors of an operator must be on one device; here are {places}')


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context for operations on ``x`` that keep its dtype. Autocast does not know the meta device."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """What autocast converts ``x`` to, or its own dtype."""
    kind = x.device.type
    if x.is_meta or x.dtype == torch.float64:  # Autocast leaves both alone.
        return x.dtype
    if hasattr(torch, 'get_autocast_dtype'):
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if kind == 'cpu':
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else x.dtype
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else x.dtype


def is_half(x: Tensor) -> bool:
    """Whether layers of ``x`` compute in half precision on a GPU, and not for export."""
    return x.is_cuda and autocast_dtype(x) in HALF and not is_exporting()


def has_hooks(module: nn.Module | None) -> bool:
    """Whether a call of the module does more or other than its own work: it has hooks, or a ``forward`` of its own."""
    if module is None:
        return False
    if 'forward' in vars(module):
        return True
    before, after = module._forward_pre_hooks, module._forward_hooks
    return bool(before or after or module._backward_pre_hooks or module._backward_hooks)


def launches_casts(x: Tensor) -> bool:
    """Whether autocast launches a kernel on a GPU for each tensor that it converts to half precision, and
    :func:`mmattn.ops.cast.cast` can have the place of it."""
    return is_half(x) and not is_tracing() and not is_transforming()  # torch.compile fuses conversions


def on_device(x: Tensor | None) -> AbstractContextManager:
    """A context in which Triton launches its kernels on the GPU of ``x``, if there is one, and not on the current
    one."""
    if x is None or not x.is_cuda or is_tracing() or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def is_other(x: object) -> bool:
    """Whether it is a tensor of another kind than torch's own."""
    return isinstance(x, Tensor) and type(x) not in (Tensor, nn.Parameter)


def triton_takes(x: Tensor) -> bool:
    """Whether Triton's kernels serve a tensor: on a GPU that Triton knows, of at most 32 bits, and plain or seen by a
    mode of torch. Kernels do not know the memory of others, such as shards."""
    if TRITON_IS_OFF or not HAS_TRITON or not x.is_cuda or x.dtype not in HALF_OR_SINGLE:
        return False
    if is_other(x) and not torch._C._len_torch_dispatch_stack():
        return False
    return not (is_exporting() or is_transforming() or _is_older(x.device, (7, 0)))


def triton_multiplies(x: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether Triton's kernels that multiply matrices serve a tensor: of 16 bits, on a GPU with tensor cores for them.

    Without tensor cores, torch's operations are faster. ``dtype``: of what is made of x, if it is not its own.
    """
    return HAS_PRODUCTS and (dtype or x.dtype) in HALF and triton_takes(x) and not _is_older(x.device, (8, 0))


def _is_older(device: torch.device, capability: tuple[int, int]) -> bool:
    """Whether a GPU's compute capability is lower. Triton and torch.compile have code from 7.0 on."""
    own = _capability(device)
    return own is not None and own < capability


@cache
def _capability(device: torch.device) -> tuple[int, int] | None:
    """None for other GPUs than NVIDIA's, and if the GPU is not here, but in fake tensors. The driver takes long."""
    has_gpu = torch.cuda.is_available() and not torch.version.hip
    return torch.cuda.get_device_capability(device) if has_gpu else None


# torch.compile asks once, when it traces. torch.compiler.assume_constant_result sets this, too, and imports all of
# torch.compile.
_is_older._dynamo_marked_constant = True


def check_triton(x: Tensor, products: bool = False) -> None:
    """Check that Triton's kernels can run on a tensor, or those with ``products`` of matrices.

    Raises:
        CannotServe: if Triton is not installed, the tensor is not on a GPU, or torch.func transforms it. For products,
            also if Triton or the GPU is too old, or the numbers have 32 bits.
    """
    if is_transforming():
        raise CannotServe("backend 'triton' is not for torch.func: choose backend 'reference'")
    if not HAS_TRITON:
        raise CannotServe("backend 'triton' needs Triton, which is not installed")
    if not x.is_cuda:
        if os.environ.get('TRITON_INTERPRET') == '1':
            return
        raise CannotServe(f"backend 'triton' needs tensors on a GPU, not on {x.device}")
    if products and not (HAS_PRODUCTS and x.dtype in HALF and not _is_older(x.device, (8, 0))):
        raise CannotServe(
            f"backend 'triton' multiplies matrices here: it needs numbers of 16 bits, not {x.dtype}, Triton 3.2 and a "
            'GPU of compute capability 8.0'
        )
