"""Every backend of the operators on a GPU, at sizes of the models, beside the reference in float64 on the CPU."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from mmattn.ops import (
    axial_attention,
    content_attention,
    elsa_attention,
    mean_shift_attention,
    neighbourhood_attention,
    shunted_attention,
)
from mmattn.ops import elsa as elsa_ops
from mmattn.ops import global_self_attention as gsa_ops
from mmattn.ops import mean_shift as mean_shift_ops
from mmattn.ops import neighbourhood as neighbourhood_ops
from mmattn.ops import shunted as shunted_ops
from tests.gpu import DEVICE, needs_gpu


class Operator(NamedTuple):
    """A row of OPERATORS.

    Args:
        compute: a function of tensors and a backend.
        backends: its table of backends.
        shapes: of the tensors, from B, H, W, heads and channels of a head.
        maps: height and width, heads and channels of a head, at stages of a model for images of 512 x 512.
        small: B, H, W, heads and channels that the reference computes in seconds.
    """

    compute: Callable[..., torch.Tensor]
    backends: dict[str, Callable]
    shapes: Callable[..., list[tuple[int, ...]]]
    maps: tuple[tuple[int, int, int], ...]
    small: tuple[int, ...] = (2, 33, 40, 4, 32)


DRY_RUN = (1, 7, 8, 2, 8)  #: in place of ``small``
SWIN = (128, 3, 32), (64, 6, 32), (32, 12, 32)
NAT = (128, 2, 32), (64, 4, 32), (32, 8, 32)
GSA = (128, 8, 16), (64, 8, 32), (32, 8, 64)
OPERATORS = {
    # the ghost summand alone, and logits as the layer makes them for the kernels
    'elsa': Operator(
        lambda logits, value, add, backend: elsa_ops._tap_major(logits, value, None, add, backend),
        elsa_ops.BACKENDS,
        lambda B, H, W, n, d: [(B, n, 49, H, W), (B, H, W, n * d), (n * d, 7, 7)],
        SWIN,
    ),
    'elsa, both ghosts': Operator(
        elsa_attention,
        elsa_ops.BACKENDS,
        lambda B, H, W, n, d: [(B, H, W, n, 49), (B, H, W, n * d), *[(n * d, 7, 7)] * 2],
        SWIN,
    ),
    'mean shift': Operator(
        mean_shift_attention,
        mean_shift_ops.BACKENDS,
        lambda B, H, W, n, d: [(B, n, H * W, d)] * 4,
        ((32, 6, 64),),
        (2, 15, 20, 4, 64),
    ),
    'mean shift in windows': Operator(
        mean_shift_attention,
        mean_shift_ops.BACKENDS,
        lambda B, H, W, n, d: [*[(B * (H * W // 49), n, 49, d)] * 4, (1, n, 49, 49)],
        SWIN,
    ),
    'shunted': Operator(
        lambda query, k1, k2, v1, v2, backend: shunted_attention(
            query, [k1, k2], [v1, v2], max(2, query.shape[-1] // 32), backend=backend
        ),
        shunted_ops.BACKENDS,
        lambda B, H, W, n, d: [
            (B, H, W, n * d),
            *[(B, H // 4, W // 4, n * d // 2), (B, H // 2, W // 2, n * d // 2)] * 2,
        ],
        NAT[1:],
    ),
    'neighbourhood': Operator(
        lambda q, k, v, bias, backend: neighbourhood_attention(q, k, v, bias, 7, 2, backend=backend),
        neighbourhood_ops.BACKENDS,
        lambda B, H, W, n, d: [*[(B, H, W, n, d)] * 3, (n, 13, 13)],
        NAT,
    ),
    'content': Operator(content_attention, gsa_ops.CONTENT_BACKENDS, lambda B, H, W, n, d: [(B, H, W, n, d)] * 3, GSA),
    'axial': Operator(
        lambda query, value, table, backend: axial_attention(query, value, table, 1, backend=backend),
        gsa_ops.AXIAL_BACKENDS,
        lambda B, H, W, n, d: [*[(B, H, W, n, d)] * 2, (2 * H - 3, d)],
        GSA,
    ),
}
DTYPES = torch.bfloat16, torch.float16, torch.float32


def candidates(name: str) -> list[str]:
    """The backends that run here; of several names of one function the first."""
    backends = OPERATORS[name].backends
    first = {function: backend for backend, function in reversed(backends.items()) if backend != 'cpp'}
    return [backend for backend in backends if backend in first.values()]


def tolerance(dtype: torch.dtype) -> float:
    return max(1e-5, 4 * torch.finfo(dtype).eps)


def differences(name: str, backend: str, dtype: torch.dtype) -> list[float]:
    """Of the result and, the largest one, of the gradients, from those of the reference, as a share of their norm.
    Inputs are rounded to the dtype for both."""
    compute, _, shapes, _, small = OPERATORS[name]
    exact = [(torch.randn(shape) / 2).to(dtype) for shape in shapes(*small if DEVICE == 'cuda' else DRY_RUN)]
    results = []
    for device, to, path in (('cpu', torch.float64, 'reference'), (DEVICE, dtype, backend)):
        inputs = [x.to(device, to).requires_grad_() for x in exact]
        out = compute(*inputs, backend=path)
        upstream = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape)
        results.append([out, *torch.autograd.grad(out, inputs, upstream.to(out))])
    assert all(actual.dtype == dtype for actual in results[1])
    shares = [(actual.double().cpu() - wanted).norm() / wanted.norm() for wanted, actual in zip(*results)]
    return [shares[0].item(), torch.stack(shares[1:]).max().item()]


@needs_gpu
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('name, backend', [(name, backend) for name in OPERATORS for backend in candidates(name)])
def test_backends_are_the_reference(name, backend, dtype):
    """Results and gradients, by the norm of their error."""
    assert all(difference <= tolerance(dtype) for difference in differences(name, backend, dtype))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='there are no two GPUs')
@pytest.mark.parametrize('name', [name for name, operator in OPERATORS.items() if 'triton' in operator.backends])
def test_the_second_gpu(name):
    """Kernels run on the GPU of their tensors, which need not be the current one."""
    compute, _, shapes, _, small = OPERATORS[name]
    inputs = [torch.randn(shape) for shape in shapes(*small)]
    expected = compute(*inputs, backend='reference')
    out = compute(*[x.to('cuda:1') for x in inputs], backend='triton')
    torch.testing.assert_close(out.cpu(), expected, atol=1e-4, rtol=1e-4)
