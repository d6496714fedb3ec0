from collections.abc import Callable

import torch
from torch import Tensor

from .backend import check_triton, named_backend, triton_takes
from .tracing import is_plain, is_tracing


def transposed(x: Tensor, backend: str | None = None) -> Tensor:
    """Matrices (B, M, N), transposed in memory: (B, N, M), contiguous.

    On the CPU, torch's copies of single matrices are 1.5 to 5 times as fast as those of batches, whose rows and columns
    evict each other from the cache if M or N is a power of two.

    Gradients are transposed in memory, too. Otherwise the layout of a gradient that is added to it would be another
    one, and that addition would be several times as slow.

    Args:
        backend: 'reference', 'copies' (of single matrices) or 'triton' (GPUs). None chooses the fastest one that can
            serve.

    Raises:
        ValueError: if the backend is unknown or cannot run here.
    """
    if backend is None:
        by_kernel = triton_takes(x) and not is_tracing() and not x.mT.is_contiguous()
        backend = 'triton' if by_kernel else 'copies' if x.device.type == 'cpu' and is_plain(x) else 'reference'
    return named_backend(BACKENDS, backend)(x)


def _triton(x: Tensor) -> Tensor:
    """triton_maps.py, imported when it is needed: Triton is not everywhere."""
    check_triton(x)
    from .triton_maps import transposed_triton

    return transposed_triton(x)


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), x.shape[2], x.shape[1])
        for matrix, copy in zip(x, out):
            copy.copy_(matrix.t())
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return _Transposed.apply(grad)

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        return _Transposed.apply(tangent)


BACKENDS: dict[str, Callable[[Tensor], Tensor]] = {
    'reference': lambda x: x.mT.contiguous(),
    'copies': _Transposed.apply,
    'triton': _triton,
}
