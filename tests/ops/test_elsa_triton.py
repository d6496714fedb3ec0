"""The GPU kernels of the ELSA operator, on a GPU or on the CPU under Triton's interpreter (see conftest.py)."""

from types import SimpleNamespace

import pytest
import torch

from mmattn.ops import elsa, elsa_attention

kernels = pytest.importorskip('mmattn.ops.elsa_triton', exc_type=ImportError)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'k, dilation, d, dtype, mul, add, size',
    [
        (3, 1, 4, torch.float32, False, False, (2, 5, 9)),
        (3, 1, 6, torch.float32, False, True, (2, 5, 9)),
        (3, 3, 5, torch.float32, True, False, (2, 5, 9)),
        (3, 1, 8, torch.float16, True, True, (2, 5, 9)),
        (5, 2, 8, torch.bfloat16, True, True, (2, 5, 9)),
        (7, 1, 4, torch.float32, False, True, (1, 8, 9)),
        pytest.param(7, 1, 6, torch.bfloat16, True, True, (2, 9, 16), marks=pytest.mark.slow),
        pytest.param(7, 2, 5, torch.float32, True, True, (1, 14, 17), marks=pytest.mark.slow),
    ],
)
def test_kernels_are_the_reference(monkeypatch, k, dilation, d, dtype, mul, add, size):
    """The output and all gradients are those of the reference in float64. Maps have more pixels than one program takes,
    and some are smaller than the neighbourhood."""
    monkeypatch.setattr(kernels, 'CHUNK', 64)  # several partial sums
    heads = 2
    exact = [torch.randn(*size, heads, k * k), torch.randn(*size, 2, heads * d)]
    exact += [torch.randn(heads * d, k, k) if given else None for given in (mul, add)]
    results = []
    for backend, to in (('reference', torch.float64), ('triton', dtype)):
        inputs = [None if x is None else x.to(dtype).to(DEVICE, to).requires_grad_() for x in exact]
        logits, fused, ghost_mul, ghost_add = inputs
        value = fused[:, :, :, 1]  # a part of a projection, not contiguous
        out = elsa_attention(logits, value, ghost_mul, ghost_add, dilation, backend=backend)
        assert out.dtype == to
        out.double().square().sum().backward()
        results.append([out, *(x.grad for x in inputs if x is not None)])
    tolerance = 40 * torch.finfo(dtype).eps
    for expected, actual in zip(*results):
        assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    'is_cuda, dtype, backend',
    [
        (True, torch.float32, 'triton'),
        (True, torch.bfloat16, 'triton'),
        (True, torch.float64, 'shifted'),
        (False, torch.float32, 'shifted'),
    ],
)
def test_kernels_are_chosen(is_cuda, dtype, backend):
    """The kernels are the default on a GPU. Float64 does not use them, because their sums are in float32."""
    assert elsa._fastest(SimpleNamespace(is_cuda=is_cuda, dtype=dtype)) == backend
