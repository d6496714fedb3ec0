"""Sums and layer norms of transformer blocks: Triton kernels beside torch, and what stays with torch."""

import copy

import pytest
import torch
from torch import nn

from mmattn.layers import MLP, Block, DropPath
from mmattn.layers import block as of_block
from mmattn.ops import layer_norm
from mmattn.ops.recompute import recompute


@pytest.fixture
def kernels(triton_runs, monkeypatch):
    """The module of the kernels, which serve here, too, and of which small maps need several programs."""
    module = pytest.importorskip('mmattn.ops.layer_norm.triton', exc_type=ImportError)
    monkeypatch.setattr(layer_norm, 'triton_takes', lambda x: True)
    for name, value in dict(NUMBERS=32, PROGRAMS=3).items():
        monkeypatch.setattr(module, name, value)
    return module


def block(drop_path=0.0, **settings):
    made = Block(6, nn.Linear(6, 6), MLP(6, 12), drop_path, **settings)
    for norm in (made.norm1, made.norm2):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -1.0, 1.0)
    return made


def twice(function):
    """What the kernels give, and what torch gives."""
    with pytest.MonkeyPatch.context() as patch:
        found = function()
        patch.setattr(layer_norm, 'triton_takes', lambda x: False)
        return found, function()


@pytest.mark.parametrize('how', ['training', 'layer scale', 'recomputed', 'inference'])
def test_kernels_in_a_block(kernels, monkeypatch, how):
    """The result and all gradients are those of torch's modules."""
    made, tokens = block(layer_scale=0.5 if how == 'layer scale' else None), torch.randn(2, 3, 5, 6)
    calls, function = [], kernels.SumAndNorm
    monkeypatch.setattr(kernels, '_sizes', lambda x, sizes=kernels._sizes: calls.append(1) or sizes(x))

    def run():
        ours = copy.deepcopy(made).train(how != 'inference')
        x = tokens.clone().requires_grad_()
        with torch.set_grad_enabled(how != 'inference'):
            out = recompute(ours, x) if how == 'recomputed' else ours(x)
        return out, torch.autograd.grad(out.square().sum(), [x, *ours.parameters()]) if out.requires_grad else ()

    torch.testing.assert_close(*twice(run), rtol=1e-4, atol=1e-4)
    assert len(calls) == dict(inference=3, recomputed=9).get(how, 6) and function is kernels.SumAndNorm


def test_second_derivatives(kernels):
    """As torch has them."""
    made, tokens = block(), torch.randn(2, 2, 3, 6)

    def run():
        x, ours = tokens.clone().requires_grad_(), copy.deepcopy(made)
        (first,) = torch.autograd.grad(ours(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, ours.norm1.weight, ours.norm2.weight])

    torch.testing.assert_close(*twice(run), rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures('kernels')
def test_drop_path():
    """Each image keeps or loses each branch by itself, and a branch that is kept is scaled: of the zero branches of a
    block, nothing is seen."""
    made, x = block(drop_path=0.75).train(), torch.randn(64, 1, 1, 6)
    for layer in (made.attn, made.mlp.fc2):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, 1.0)
    made.mlp.fc2.bias.data.fill_(100.0)
    shares = ((made(x) - x) / 4).detach().round()
    assert {float(share) for share in shares.unique()} == {0, 1, 100, 101}
    assert (shares == shares[:, :, :, :1]).all()


@pytest.mark.usefixtures('kernels')
def test_dtype_that_is_read(monkeypatch):
    """A linear layer that alone reads the tokens gets those that autocast would make. Hooks, and modules that do not
    say what reads their tokens, get the dtype of the map."""
    monkeypatch.setattr(of_block, 'autocast_dtype', lambda x: torch.bfloat16)
    monkeypatch.setattr(torch, 'is_autocast_enabled', lambda *_: True)
    made, seen = block(), []
    forward = MLP.forward
    monkeypatch.setattr(MLP, 'forward', lambda self, x: seen.append(x.dtype) or forward(self, x.float()))
    made.attn.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].dtype))
    made(torch.randn(1, 2, 3, 6))
    made.mlp.fc1.register_forward_hook(lambda *_: None)
    made(torch.randn(1, 2, 3, 6))
    assert seen == [torch.float32, torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize(
    'change',
    [
        lambda norm, **_: norm.register_forward_hook(lambda *_: None),
        lambda drop_path, **_: drop_path.register_forward_hook(lambda *_: None),
        lambda norm, **_: setattr(norm, '__class__', type('Norm', (nn.LayerNorm,), {})),
        lambda norm, **_: norm.register_parameter('bias', None),
        lambda x, **_: x.transpose_(1, 2),
    ],
    ids=['hook', 'hook of drop path', 'other norm', 'no bias', 'other layout'],
)
@pytest.mark.usefixtures('kernels')
def test_what_stays_with_torch(change):
    """Whatever needs the module itself, or has numbers that the kernels do not."""
    norm, drop_path, x = nn.LayerNorm(4), DropPath(0.5), torch.randn(2, 3, 5, 4)
    assert layer_norm.kernels_serve(x, norm, drop_path)
    change(norm=norm, drop_path=drop_path, x=x)
    assert not layer_norm.kernels_serve(x, norm, drop_path)
