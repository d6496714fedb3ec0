"""Second derivatives, and the transforms of torch.func: each path gives those of the reference, or a sentence."""

import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import grad, hessian, jvp, vmap

from mmattn.errors import InputError
from mmattn.ops import content_attention, library, neighbourhood_sum
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.global_self_attention import batched
from mmattn.ops.grouped_conv import grouped_conv
from mmattn.ops.recompute import recompute
from tests.ops.operators import axial, convolution, elsa, mean_shift, neighbourhood, shunted

SIZE = 1, 3, 4
OPERATORS = {
    'elsa': elsa(SIZE, 2, 2, 3),
    'axial': axial(SIZE, 2, 3, 2, 3, 1),
    'axial-keys': axial(SIZE, 2, 3, 2, 3, 2, softmax=True, with_key=True),
    'grouped-conv': convolution(grouped_conv, SIZE, 8, 4, 3),
    'depthwise-conv': convolution(depthwise_conv, SIZE, 8, 1, 5),
    'content': (content_attention, dict.fromkeys(('query', 'key', 'value'), (*SIZE, 2, 3))),
    'mean-shift': mean_shift(1, 2, 4, 4, 3),
    'neighbourhood': neighbourhood(SIZE, 2, 3, 3, others=('bias',)),
    'shunted': shunted(SIZE, 2, 2, 1),
}
NOT_TWICE = 'has no second derivatives|have no second derivatives|derivative for .* is not implemented'


def make(name, dtype=torch.float32):
    operator, shapes = OPERATORS[name]
    return operator, tuple(torch.randn(shape, dtype=dtype) for shape in shapes.values())


def second(operator, inputs, linear, by_backward=False):
    """Derivatives of the squared gradients. If linear, the gradient of the result is a constant."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = operator(*inputs)
    gradients = torch.autograd.grad((out if linear else out.pow(3)).sum(), inputs, create_graph=True)
    size = sum(x.square().sum() for x in gradients)
    if by_backward:
        size.backward()
        return [x.grad for x in inputs]
    return torch.autograd.grad(size, inputs, allow_unused=True)


@pytest.mark.parametrize('by_backward', [False, True])
@pytest.mark.parametrize('linear', [False, True])
@pytest.mark.parametrize(
    'name, backend, right',
    [
        ('elsa', None, False),
        ('elsa', 'shifted', True),
        ('axial', None, False),
        ('axial', 'batched', True),
        ('grouped-conv', None, False),
        ('depthwise-conv', None, True),
        ('axial-keys', None, True),
        ('content', None, True),
        ('mean-shift', None, False),
        ('mean-shift', 'bias', True),
        ('neighbourhood', None, False),
        ('shunted', None, False),
    ],
)
def test_second_derivatives(name, backend, right, linear, by_backward):
    """A path has those of the reference, or raises an error, whichever way they are asked for. Where the gradient of
    the result is a constant, torch's once_differentiable would be silent."""
    operator, inputs = make(name)
    path = partial(operator, backend=backend)
    if not right and (library.HAS_LIBRARY or name not in ('elsa', 'axial', 'grouped-conv', 'neighbourhood')):
        with pytest.raises((InputError, RuntimeError), match=NOT_TWICE):
            second(path, inputs, linear, by_backward)
        return
    expected = second(partial(operator, backend='reference'), [x.double() for x in inputs], linear)
    for x, wanted in zip(second(path, inputs, linear, by_backward), expected):
        if wanted is not None:
            torch.testing.assert_close(x.double(), wanted, atol=1e-4 * wanted.abs().max().item() + 1e-6, rtol=0)


@pytest.mark.parametrize('blocks', [False, True])
@pytest.mark.parametrize('name', ['elsa', 'axial', 'axial-keys'])
def test_gradgradcheck(monkeypatch, name, blocks):
    """The hand-written backward passes that torch differentiates again are right, in blocks of lines, too."""
    monkeypatch.setattr(batched, 'MAX_SCORES', 20 if blocks else batched.MAX_SCORES)
    operator, inputs = make(name, torch.float64)
    assert torch.autograd.gradgradcheck(operator, [x.requires_grad_() for x in inputs], fast_mode=True)


TRANSFORMS = {
    'grad': lambda operator, inputs: grad(lambda *x: operator(*x).pow(3).sum(), tuple(range(len(inputs))))(*inputs),
    'jvp': lambda operator, inputs: jvp(operator, inputs, tuple(x.cos() for x in inputs)),
    'hessian': lambda operator, inputs: hessian(lambda x: operator(x, *inputs[1:]).pow(3).sum())(inputs[0]),
    'vmap': lambda operator, inputs: vmap(operator)(*(torch.stack([x, x.sin()]) for x in inputs)),
    'vmap of one': lambda operator, inputs: vmap(lambda x: operator(x, *inputs[1:]))(torch.stack([inputs[0]] * 2)),
    'gradients of samples': lambda operator, inputs: vmap(grad(lambda *x: operator(*x).pow(3).sum()))(
        *(torch.stack([x, x.sin()]) for x in inputs)
    ),
}


@pytest.mark.parametrize('transform', TRANSFORMS)
@pytest.mark.parametrize('name', OPERATORS)
def test_transforms(name, transform):
    """The default path gives what the reference gives under torch.func, or torch's fused attention says that it has no
    such derivative."""
    operator, inputs = make(name)
    expected = TRANSFORMS[transform](partial(operator, backend='reference'), tuple(x.double() for x in inputs))
    try:
        found = TRANSFORMS[transform](operator, inputs)
    except RuntimeError as error:
        fused = 'derivative for .* is not implemented|Trying to use forward AD|Batching rule not implemented'
        assert name in ('mean-shift', 'shunted') and re.search(fused, str(error)), error
        return
    for x, wanted in zip(*(torch.utils._pytree.tree_flatten(each)[0] for each in (found, expected))):
        torch.testing.assert_close(x.double(), wanted, atol=1e-4 * wanted.abs().max().item(), rtol=0)


@pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
@pytest.mark.parametrize('name', ['elsa', 'axial', 'grouped-conv', 'neighbourhood'])
def test_compiled_path_refuses_forward_derivatives(name):
    operator, inputs = make(name)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match='forward mode AD'):
        operator(*(torch.autograd.forward_ad.make_dual(x, x) for x in inputs))


@pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
def test_operators_of_torch_have_gradients():
    """torch.ops.mmattn.neighbourhood_sum, called directly, has first derivatives, and no second ones."""
    weights, value = torch.randn(1, 3, 4, 2, 9).requires_grad_(), torch.randn(1, 3, 4, 4)
    operator = torch.ops.mmattn.neighbourhood_sum
    found = [
        torch.autograd.grad(out.pow(3).sum(), weights)[0]
        for out in (operator(weights, value, None, None, 2), neighbourhood_sum(weights, value, dilation=2))
    ]
    assert found[0].abs().max() > 0
    torch.testing.assert_close(*found)
    (gradient,) = torch.autograd.grad(operator(weights, value, None, None, 2).pow(3).sum(), weights, create_graph=True)
    with pytest.raises(InputError, match='second derivatives'):
        torch.autograd.grad(gradient.sum(), weights)


def test_recomputed_blocks_are_differentiated_twice():
    """The activations of a block with batch norms are recomputed in each of two backward passes, with its gradients and
    one update of statistics."""
    block, x = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.Tanh()), torch.randn(2, 3, 4, 4)
    plain = second(block, [x], linear=False)
    mean = block[1].running_mean.clone()
    block[1].reset_running_stats()
    torch.testing.assert_close(second(partial(recompute, block), [x], linear=False), plain)
    assert block[1].num_batches_tracked == 1 and block[1].running_mean.equal(mean)
