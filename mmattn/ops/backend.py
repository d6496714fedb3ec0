"""Which path an operator takes. A path that was compiled for a device is compared with the reference there first."""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from numbers import Real

import torch
from torch import Tensor

from ..errors import describe, warn
from .tracing import is_tracing, is_transforming, pretends

#: torch.compile cannot look for packages while it traces
HAS_TRITON = find_spec('triton') is not None
#: the largest difference of a compiled path from the reference, as a share of the largest number: in float32, the first
#: figure; in half precision, a number of rounding steps, because gradients are rounded between two kernels
TOLERANCE, ROUNDINGS = 1e-4, 16
HALF_OR_SINGLE = torch.float16, torch.bfloat16, torch.float32  #: what compiled paths take
DTYPES = *HALF_OR_SINGLE, torch.float64

_lock = threading.Lock()
_chosen: dict[tuple, str] = {}
_logged: set[tuple] = set()


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
    if not (isinstance(dropout_p, Real) and 0 <= dropout_p <= 1):
        raise ValueError(f'dropout_p must be a number from 0 to 1, not {dropout_p!r}')
    given = {name: x for name, x in maps.items() if x is not None}
    for name, x in given.items():
        if x.dtype not in DTYPES:
            raise ValueError(f'{name} must be floating-point numbers of 16, 32 or 64 bits, not {x.dtype}')
        if not is_tracing() and 0 in x.shape[1:]:
            raise ValueError(f'{name} must have no empty dimension but the first, not {tuple(x.shape)}')
    if len({x.device for x in given.values()}) > 1:
        places = ', '.join(f'{name} on {x.device}' for name, x in given.items())
        raise ValueError(f'all tensors of an operator must be on one device; here are {places}')


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context for operations on ``x`` that keep its dtype. Autocast does not know the meta device."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def on_device(x: Tensor) -> AbstractContextManager:
    """A context in which Triton launches its kernels on the GPU of ``x``, and not on the current one."""
    return torch.cuda.device(x.device) if x.is_cuda and not is_tracing() else nullcontext()


def check_triton(x: Tensor) -> None:
    """Check that Triton's kernels can run on a tensor.

    Raises:
        ValueError: if Triton is not installed, the tensor is not on a GPU, or torch.func transforms it.
    """
    if is_transforming():
        raise ValueError("backend 'triton' is not for torch.func: choose backend 'reference'")
    if not HAS_TRITON:
        raise ValueError("backend 'triton' needs Triton, which is not installed")
    if not x.is_cuda and os.environ.get('TRITON_INTERPRET') != '1':
        raise ValueError(f"backend 'triton' needs tensors on a GPU, not on {x.device}")


def choose_backend(
    operator: str,
    names: Sequence[str],
    device: torch.device,
    dtype: torch.dtype,
    compute: Callable[..., Tensor] | None = None,
    case: tuple = (),
) -> str:
    """The first of some backends that gives the results of the reference on a device.

    At the first use of each device, dtype and case, every backend but the last computes a small case, forward and
    backward, beside the reference in float64 on the CPU. If it does not compile or differs, one warning says so, and
    the next one serves from then on. The choice is logged once per operator, device and backend, if MMEngine has a
    logger: a library that is used without it writes nothing.

    torch.compile runs this function when it traces a graph, and keeps the answer as a constant. In some
    cases nothing can be computed: fake tensors, also of a GPU that is not here, get the first backend; while a CUDA
    graph is captured, and within a backward pass, the last one serves if there is no answer yet. These answers are not
    kept.

    Args:
        operator: its name in messages.
        names: of backends, the fastest first. The last needs no compiler and is not checked.
        device, dtype: of the tensors.
        compute: the operator, called with the parts of the case and ``backend``; needed for more than one name.
        case: shapes of the tensors of the small case, or None for one that is left out. They are constants, because a
            graph may have no numbers of its own tensors' shapes.
    """
    key = operator, tuple(names), device, dtype, case
    if key in _chosen:
        return _chosen[key]
    if device.type == 'meta' or device.type == 'cuda' and not torch.cuda.is_available() or pretends():
        return names[0]
    if len(names) > 1 and _is_occupied(device):
        return names[-1]
    with _lock:
        if key not in _chosen:
            _chosen[key] = _first_right(operator, names, device, dtype, compute, case)
            _log(operator, _chosen[key], device)
    return _chosen[key]


# torch.compiler.assume_constant_result sets this, too, and imports all of torch.compile.
choose_backend._dynamo_marked_constant = True


def _is_occupied(device: torch.device) -> bool:
    """Whether nothing else can be computed on a device now: autograd has one thread per GPU for backward passes."""
    capturing = device.type == 'cuda' and torch.cuda.is_current_stream_capturing()
    return capturing or torch._C._current_graph_task_id() != -1


def _first_right(
    operator: str, names: Sequence[str], device: torch.device, dtype: torch.dtype, compute: Callable, case: tuple
) -> str:
    for name, following in zip(names, names[1:]):
        # Gradients, inference mode, autocast and transforms of functions are switched on and off for a thread: a new
        # one has none of what the caller has switched.
        with ThreadPoolExecutor(1) as thread:
            problem = thread.submit(_problem, compute, case, name, device, dtype).result()
        if not problem:
            return name
        warn(
            f"{operator}: backend '{name}' is wrong on {_named(device)} in {dtype} and is not used, '{following}' "
            f'serves instead: {problem}'
        )
    return names[-1]


def _problem(compute: Callable, case: tuple, name: str, device: torch.device, dtype: torch.dtype) -> str:
    """What is wrong with a backend, with figures; '' if nothing is."""
    try:
        expected = _results(compute, case, 'reference', torch.device('cpu'), dtype, torch.float64)
    except RuntimeError:  # A forked process cannot compute gradients after its parent did, by any path.
        return ''
    try:
        with torch.cuda.device(device) if device.type == 'cuda' else nullcontext():
            found = _results(compute, case, name, device, dtype, dtype)
    except Exception as error:  # compilers, drivers and loaders raise many kinds
        return describe(error)[:200]
    tolerance = max(TOLERANCE, ROUNDINGS * torch.finfo(dtype).eps)
    for what, wanted, actual in zip(['result', *(f'gradient {n}' for n in range(1, len(found)))], expected, found):
        largest = wanted.abs().max().item()
        difference = (actual - wanted).abs().max().item()
        if not difference <= tolerance * largest:  # not a number, too
            return (
                f'the largest difference of its {what} from the reference is {difference:.2g} where the tolerance is '
                f'{tolerance * largest:.2g}'
            )
    return ''


def _results(
    compute: Callable, case: tuple, backend: str, device: torch.device, dtype: torch.dtype, exact: torch.dtype
) -> list[Tensor]:
    """Result and gradients of a case in float64 on the CPU. Numbers are fixed, and rounded to ``dtype``."""
    parts = [
        None if shape is None else _waves(shape, number + 1).to(dtype).to(device, exact).requires_grad_()
        for number, shape in enumerate(case)
    ]
    out = compute(*parts, backend=backend)
    upstream = _waves(out.shape, 0.7).to(dtype).to(out)
    gradients = torch.autograd.grad(out, [part for part in parts if part is not None], upstream)
    return [x.detach().to('cpu', torch.float64) for x in (out, *gradients)]


def _waves(shape: Sequence[int], step: float) -> Tensor:
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device='cpu')
    return torch.sin(step * numbers).view(shape)


def _named(device: torch.device) -> str:
    return f'{device} ({torch.cuda.get_device_name(device)})' if device.type == 'cuda' else str(device)


def _log(operator: str, name: str, device: torch.device) -> None:
    from mmengine.logging import MMLogger, print_log  # see mmattn.errors.warn

    if (operator, name, device) not in _logged and MMLogger._instance_dict:
        _logged.add((operator, name, device))
        print_log(f"{operator} on {device}: backend '{name}'", logger='current', level=logging.INFO)
