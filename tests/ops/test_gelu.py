"""GELU after a linear layer: Triton kernels beside torch, and what stays with torch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmattn.ops import gelu


@pytest.fixture
def kernels(triton_runs, monkeypatch):
    """The module of the kernels, which serve here, too, and of which small maps need several programs."""
    module = pytest.importorskip('mmattn.ops.gelu.triton', exc_type=ImportError)
    monkeypatch.setattr(gelu, 'triton_takes', lambda x: True)
    for name, value in dict(CHANNELS=4, NUMBERS=16, PROGRAMS=6).items():
        monkeypatch.setattr(module, name, value)
    return module


@pytest.mark.parametrize('order', [1, 2], ids=['gradients', 'second derivatives'])
def test_kernels_in_a_layer(kernels, monkeypatch, order):
    """The result and all gradients are those of torch's operators."""
    made, tokens, calls = nn.Linear(3, 6), torch.randn(2, 3, 5, 3), []
    monkeypatch.setattr(kernels, '_parts', lambda x, parts=kernels._parts: calls.append(1) or parts(x))

    def run(function):
        layer, x = copy.deepcopy(made), tokens.clone().requires_grad_()
        out = function(layer, x)
        inputs = [x, layer.weight, layer.bias]
        found = torch.autograd.grad(out.square().sum(), inputs, create_graph=order == 2)
        return out, found if order == 1 else torch.autograd.grad(found[0].square().sum(), inputs)

    torch.testing.assert_close(run(gelu.linear_gelu), run(lambda layer, x: F.gelu(layer(x))), rtol=1e-4, atol=1e-4)
    assert len(calls) == 2


@pytest.mark.parametrize(
    'change',
    [
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: setattr(layer, '__class__', type('Other', (nn.Linear,), {})),
        lambda layer: layer.register_parameter('bias', None),
    ],
    ids=['hook', 'other layer', 'no bias'],
)
def test_what_stays_with_torch(kernels, monkeypatch, change):
    """Whatever needs the module itself."""
    layer, x, calls = nn.Linear(3, 5), torch.randn(1, 2, 3), []
    monkeypatch.setattr(gelu, 'biased_gelu', lambda *_: calls.append(1))
    gelu.linear_gelu(layer, x)
    change(layer)
    torch.testing.assert_close(gelu.linear_gelu(layer, x), F.gelu(layer(x)))
    assert calls == [1]
