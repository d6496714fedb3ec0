"""GELU between the layers of an MLP: Triton kernels beside torch, and what stays with torch."""

import copy

import pytest
import torch
from torch import nn

from mmattn.layers import MLP
from mmattn.layers.feed_forward import DetailMLP
from mmattn.ops import gelu, library


@pytest.fixture
def kernels(triton_runs, monkeypatch):
    """The module of the kernels, which serve here, too, and of which small maps need several programs."""
    module = pytest.importorskip('mmattn.ops.gelu.triton', exc_type=ImportError)
    monkeypatch.setattr(gelu, 'triton_takes', lambda x: True)
    for name, value in dict(CHANNELS=4, NUMBERS=16, PROGRAMS=6).items():
        monkeypatch.setattr(module, name, value)
    return module


@pytest.mark.parametrize('order', [1, 2], ids=['gradients', 'second derivatives'])
def test_kernels_in_an_mlp(kernels, monkeypatch, order):
    """The result and all gradients are those of torch's operators, and the map after the GELU is not kept."""
    made, tokens, kept = MLP(3, 6), torch.randn(2, 3, 5, 3), []

    def run(serves):
        monkeypatch.setattr(gelu, 'triton_takes', lambda x: serves)
        layer, x = copy.deepcopy(made), tokens.clone().requires_grad_()
        hooks = lambda x: (kept.append(x.shape[-1] == 6 and x.numel() == 180), x)[1], lambda x: x
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            out = layer(x)
        kept.append(None)
        inputs = [x, *layer.parameters()]
        found = torch.autograd.grad(out.square().sum(), inputs, create_graph=order == 2)
        return out, found if order == 1 else torch.autograd.grad(found[0].square().sum(), inputs[:-1])

    torch.testing.assert_close(run(True), run(False), rtol=1e-4, atol=1e-4)
    assert [sum(kept[: kept.index(None)]), sum(filter(None, kept))] == [1, 3]


@pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
def test_gated_in_cpp():
    """Values, gradients and second derivatives are torch's, also of the last numbers and of large ones."""

    def run(dtype):
        torch.manual_seed(0)
        inputs = [(4 * torch.randn(3, 1, 7, 211, dtype=torch.float64)).to(dtype).requires_grad_() for _ in range(2)]
        out = gelu.gelu_gated(*inputs)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(first[0].sum(), inputs, materialize_grads=True, allow_unused=True)
        return [x.detach() for x in (out, *first, *second)]

    expected = run(torch.float64)
    for found, exact in zip(run(torch.float32), expected):
        torch.testing.assert_close(found.double(), exact, atol=2e-6 * exact.abs().max().item(), rtol=1e-5)


def active_dropout(layer):
    layer.drop1.p = 0.5


@pytest.mark.parametrize(
    'change',
    [
        active_dropout,
        lambda layer: layer.fc2.register_forward_hook(lambda *_: None),
        lambda layer: layer.drop1.register_forward_hook(lambda *_: None),
        lambda layer: setattr(layer.fc1, '__class__', type('Other', (nn.Linear,), {})),
        lambda layer: layer.fc1.register_parameter('bias', None),
        lambda layer: setattr(layer, '__class__', DetailMLP),
    ],
    ids=['dropout', 'hook', 'hook between', 'other layer', 'no bias', 'other hidden map'],
)
@pytest.mark.usefixtures('kernels')
def test_what_stays_with_torch(change):
    """Whatever needs the modules themselves."""
    layer, x = MLP(3, 5), torch.randn(1, 1, 2, 3)
    assert layer.is_fused(x)
    change(layer)
    assert not layer.is_fused(x)
