import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from torch import Tensor


def named_backend(backends: Mapping[str, Callable], name: str) -> Callable:
    """The function of a backend.

    Raises:
        ValueError: if the name is unknown; the message lists the known names.
    """
    if name not in backends:
        raise ValueError(f'backend must be None or one of {", ".join(backends)}, not {name!r}')
    return backends[name]


def check_triton(x: Tensor) -> None:
    """Check that Triton's kernels can run on a tensor.

    Raises:
        ValueError: if Triton is not installed, or the tensor is not on a GPU.
    """
    if find_spec('triton') is None:
        raise ValueError("backend 'triton' needs Triton, which is not installed")
    if not x.is_cuda and os.environ.get('TRITON_INTERPRET') != '1':
        raise ValueError(f"backend 'triton' needs tensors on a GPU, not on {x.device}")
