"""The GPU kernels of the ELSA operator: on a GPU, or on the CPU under Triton's interpreter (see conftest.py)."""

from types import SimpleNamespace

import pytest
import torch

from mmattn.ops import elsa

kernels = pytest.importorskip('mmattn.ops.elsa_triton', exc_type=ImportError)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'k, dilation, d, dtype, mul, add',
    [
        (3, 1, 4, torch.float32, False, False),
        (3, 1, 6, torch.float32, False, True),
        (3, 3, 5, torch.float32, True, False),
        (3, 1, 8, torch.float16, True, True),
        (5, 2, 8, torch.bfloat16, True, True),
    ],
)
def test_kernels_are_the_reference(monkeypatch, k, dilation, d, dtype, mul, add):
    """Output and all gradients, on maps larger than a block and smaller than the neighbourhood's reach."""
    monkeypatch.setattr(kernels, 'CHUNK', 64)  # several partial sums
    B, H, W, heads = 2, 5, 9, 2
    exact = [torch.randn(B, H, W, heads, k * k), torch.randn(B, H, W, 2, heads * d)]
    exact += [torch.randn(heads * d, k, k) if given else None for given in (mul, add)]
    results = []
    for path, to in ((elsa.elsa_attention_reference, torch.float64), (kernels.elsa_attention_triton, dtype)):
        inputs = [None if x is None else x.to(dtype).to(DEVICE, to).requires_grad_() for x in exact]
        logits, fused, ghost_mul, ghost_add = inputs
        out = path(logits, fused[:, :, :, 1], ghost_mul, ghost_add, dilation)  # a value that is part of a projection
        assert out.dtype == to
        out.double().square().sum().backward()
        results.append([out, *(x.grad for x in inputs if x is not None)])
    tolerance = 40 * torch.finfo(dtype).eps
    for expected, actual in zip(*results):
        assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    'is_cuda, dtype, path',
    [
        (True, torch.float32, kernels.elsa_attention_triton),
        (True, torch.bfloat16, kernels.elsa_attention_triton),
        (True, torch.float64, elsa.elsa_attention_shifted),
        (False, torch.float32, elsa.elsa_attention_shifted),
    ],
)
def test_kernels_are_chosen(is_cuda, dtype, path):
    """On a GPU, but not for float64, which their float32 sums would round."""
    assert elsa._select(SimpleNamespace(is_cuda=is_cuda, dtype=dtype)) is path
