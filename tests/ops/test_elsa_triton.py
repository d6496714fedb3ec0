"""The GPU kernels of the ELSA operator, on a GPU or on the CPU under Triton's interpreter (see conftest.py)."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from mmattn.layers import ELSA
from mmattn.ops import elsa, elsa_attention
from tests import ROOT

kernels = pytest.importorskip('mmattn.ops.elsa.triton', exc_type=ImportError)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'k, dilation, d, dtype, mul, add, size, wide',
    [
        (1, 1, 4, torch.float32, False, False, (1, 3, 9), True),
        (3, 1, 6, torch.float32, False, True, (2, 2, 9), False),
        (3, 3, 5, torch.float16, True, False, (1, 3, 9), True),
        (5, 2, 8, torch.bfloat16, True, True, (1, 3, 9), False),
        (7, 1, 4, torch.float32, False, True, (1, 3, 9), True),
        pytest.param(3, 1, 8, torch.float32, True, True, (2, 5, 9), False, marks=pytest.mark.slow),
        pytest.param(7, 1, 32, torch.float32, True, True, (2, 9, 16), False, marks=pytest.mark.slow),
        pytest.param(7, 1, 32, torch.bfloat16, False, True, (2, 9, 16), True, marks=pytest.mark.slow),
        pytest.param(7, 2, 5, torch.float32, True, True, (1, 14, 17), False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.every(3)
def test_kernels_are_the_reference(monkeypatch, k, dilation, d, dtype, mul, add, size, wide):
    """The output and all gradients are those of the reference in float64. Maps have more pixels than one program takes,
    and some are smaller than the neighbourhood. Where indices have 64 bits (wide), logits are pixel-major."""
    monkeypatch.setattr(kernels, 'MAP_BYTES', 512)  # several tiles of a small map
    monkeypatch.setattr(kernels, 'CHUNK', 16)  # several partial sums
    if wide:
        monkeypatch.setattr(kernels, 'WIDE', 0)
    heads = 2
    exact = [torch.randn(size[0], heads, k * k, *size[1:]), torch.randn(*size, 2, heads * d)]
    exact += [torch.randn(heads * d, k, k) if given else None for given in (mul, add)]
    results = []
    for backend, to in (('reference', torch.float64), ('triton', dtype)):
        inputs = [None if x is None else x.to(dtype).to(DEVICE, to).requires_grad_() for x in exact]
        logits, fused, ghost_mul, ghost_add = inputs
        logits = logits.permute(0, 3, 4, 1, 2)
        value = fused[:, :, :, 1]  # a part of a projection, not contiguous
        logits = logits.contiguous() if wide else logits
        out = elsa_attention(logits, value, ghost_mul, ghost_add, dilation, backend=backend)
        assert out.dtype == to
        out.double().square().sum().backward()
        results.append([out, *(x.grad for x in inputs if x is not None)])
    tolerance = 40 * torch.finfo(dtype).eps
    for expected, actual in zip(*results):
        assert (actual.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.usefixtures('triton_runs')
def test_large_logits():
    """Exponentials do not overflow, and weights far below the largest one are zero."""
    value = torch.randn(1, 4, 5, 8, device=DEVICE)
    logits = 300 * torch.randn(1, 4, 5, 2, 9, device=DEVICE)
    expected = elsa_attention(logits, value, backend='reference')
    out = elsa_attention(logits, value, backend='triton')
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)  # a logit of 1000 has the precision 6e-5


@pytest.mark.usefixtures('triton_runs')
def test_a_single_image_in_another_layout():
    """Of one image, maps can be seen as rows of pixels without a copy, also if channels are not neighbours."""
    value = torch.randn(1, 8, 4, 5, device=DEVICE).permute(0, 2, 3, 1)
    logits = torch.randn(1, 4, 5, 2, 9, device=DEVICE)
    expected = elsa_attention(logits, value, backend='reference')
    torch.testing.assert_close(elsa_attention(logits, value, backend='triton'), expected)


@pytest.mark.usefixtures('triton_runs')
def test_gradient_of_logits_has_their_strides():
    """Otherwise the layer's product would copy it. Logits that share memory get a gradient of their own each."""
    value = torch.randn(1, 4, 5, 8, device=DEVICE)
    tap_major = torch.randn(1, 2, 9, 4, 5, device=DEVICE).permute(0, 3, 4, 1, 2)
    repeated = torch.randn(1, 1, 5, 2, 9, device=DEVICE).expand(1, 4, 5, 2, 9)
    for logits in (tap_major, repeated):
        gradients = []
        for backend in ('reference', 'triton'):
            logits = logits.detach().requires_grad_()
            out = elsa_attention(logits, value, backend=backend)
            gradients += torch.autograd.grad(out.square().sum(), logits)
        torch.testing.assert_close(*gradients)
        if logits.stride(1):
            assert gradients[1].stride() == logits.stride()


@pytest.mark.usefixtures('triton_runs')
def test_layer_makes_tap_major_logits(monkeypatch):
    """The layer gives the kernels logits of neighbouring pixels side by side, and the same output as without."""
    layer = ELSA(12, 2, kernel_size=3, group_width=4).to(DEVICE)
    x = torch.randn(2, 4, 5, 12, device=DEVICE)
    product = torch.randn(2, 4, 5, layer.dim_qk, device=DEVICE, requires_grad=True)
    logits = layer._logits(product, tap_major=True)
    torch.testing.assert_close(logits, layer._logits(product))
    assert logits.stride() == (2 * 9 * 20, 5, 1, 9 * 20, 20)
    outputs = []
    for layer.backend in ('reference', 'triton'):
        outputs.append(layer(x))
    torch.testing.assert_close(*outputs)


def test_kernels_have_no_dropout():
    with pytest.raises(ValueError, match="backend 'triton' needs dropout_p=0, not 0.1: choose backend 'shifted'"):
        kernels.elsa_attention_triton(torch.randn(1, 2, 2, 1, 9), torch.randn(1, 2, 2, 4), dropout_p=0.1)


GRAPHS = """
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from triton_report import no_device
from mmattn.ops import elsa_attention

class Operator(torch.nn.Module):
    def forward(self, logits, value, ghost_add):
        return elsa_attention(logits, value, None, ghost_add)

graphs = []
no_device(90)
with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
    shapes = (2, 8, 9, 3, 49), (2, 8, 9, 96), (96, 7, 7)
    inputs = tuple(torch.empty(shape, device='cuda', dtype=torch.bfloat16) for shape in shapes)
    keep = lambda graph, _: graphs.append(graph) or graph
    out = torch.compile(Operator(), backend=aot_autograd(fw_compiler=keep), fullgraph=True)(*inputs)
    assert out.shape == inputs[1].shape and out.dtype == torch.bfloat16 and out.is_cuda
    graphs += [torch.export.export(Operator(), inputs, strict=strict).graph_module for strict in (False, True)]
print(*('triton_kernel' in graph.code for graph in graphs))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.compiler, 'is_exporting'), reason='only torch 2.7 tells export from compile')
def test_kernels_in_graphs():
    """On a GPU, torch.compile keeps the kernels, and torch.export does not. The GPU and its tensors are pretended, in a
    process of its own, because this one interprets the kernels."""
    env = {name: text for name, text in os.environ.items() if name != 'TRITON_INTERPRET'}
    env['PYTHONPATH'] = os.pathsep.join(map(str, (ROOT, ROOT / 'tools' / 'dev')))
    command = [sys.executable, '-c', GRAPHS]
    assert subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout == 'True False False\n'


@pytest.mark.parametrize(
    'is_cuda, dtype, dropout_p, chosen',
    [
        (True, torch.bfloat16, 0.0, True),
        (True, torch.bfloat16, 0.1, False),
        (True, torch.float64, 0.0, False),
        (False, torch.float32, 0.0, False),
    ],
    ids=['half', 'dropout', 'double', 'cpu'],
)
def test_kernels_are_chosen(monkeypatch, is_cuda, dtype, dropout_p, chosen):
    """The kernels are the default on a GPU. Float64 does not use them, because their sums are in float32, and dropout
    does not, because they make the weights themselves."""
    value = SimpleNamespace(is_cuda=is_cuda, dtype=dtype, device=torch.device('cuda'))
    monkeypatch.setattr(elsa.library, 'takes', lambda *_, **__: False)
    assert elsa.fastest(value, value, dropout_p) == ('triton' if chosen else 'shifted')
