"""The GPU kernels of GSA's axial sums, on a GPU or on the CPU under Triton's interpreter (see conftest.py)."""

import pytest
import torch

from mmattn.layers import GlobalSelfAttention
from mmattn.ops.global_self_attention import axial_attention

kernels = pytest.importorskip('mmattn.ops.global_self_attention.triton', exc_type=ImportError)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'dim, size, heads, k, v, L, beyond, dtype',
    [
        (1, (2, 3, 2), 2, 4, 4, 4, 'stretch', torch.float32),
        (2, (1, 2, 18), 2, 3, 5, 9, 'mask', torch.float32),
        (1, (1, 17, 1), 1, 17, 16, 30, 'stretch', torch.bfloat16),
        (2, (2, 2, 4), 2, 8, 8, 3, 'stretch', torch.float16),
    ],
)
@pytest.mark.every(3)
def test_kernels_are_the_reference(monkeypatch, dim, size, heads, k, v, L, beyond, dtype):
    """The output and all gradients are those of the reference in float64. Lines are longer than a block and shorter,
    and maps are parts of a fused projection."""
    monkeypatch.setattr(kernels, 'BLOCK', 8)
    monkeypatch.setattr(kernels, 'PARTS', 3)  # several lines in a partial sum, and several sums
    exact = torch.randn(*size, heads, k + v), torch.randn(2 * L - 1, k)
    grad = torch.randn(*size, heads, v)
    results = []
    for backend, to in (('reference', torch.float64), ('triton', dtype)):
        fused, table = inputs = [x.to(dtype).to(DEVICE, to).requires_grad_() for x in exact]
        out = axial_attention(fused[..., :k], fused[..., k:], table, dim, beyond, backend)
        assert out.dtype == to
        results.append([out, *torch.autograd.grad(out, inputs, grad.to(out))])
    for expected, actual in zip(*results):
        assert (actual.double() - expected).abs().max() <= 16 * torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.usefixtures('triton_runs')
def test_layer_takes_the_kernels():
    """Content attention has no kernels of its own, and does not hinder a layer from taking those of axial attention."""
    layer, x = GlobalSelfAttention(8, 2, stride=32).eval().to(DEVICE), torch.randn(1, 3, 4, 8, device=DEVICE)
    expected = layer(x)
    layer.backend = 'triton'
    torch.testing.assert_close(layer(x), expected)


def test_needs_a_gpu(monkeypatch):
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    x = torch.zeros(1, 2, 2, 1, 4)
    with pytest.raises(ValueError, match='needs tensors on a GPU, not on cpu'):
        axial_attention(x, x, torch.zeros(3, 4), 1, backend='triton')
