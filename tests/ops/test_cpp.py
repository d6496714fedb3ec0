"""What all operators with C++ code have in common: setup.py compiles it where mmattn is installed."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count_operations
from mmattn.analysis.complexity import operator_formulas
from mmattn.ops import library
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.grouped_conv import grouped_conv
from mmattn.packages import version_numbers
from tests.ops.operators import aggregated, axial, convolution, elsa, neighbourhood

pytestmark = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')

#: an operator for B images, the functions of the library that a step calls, those in bfloat16, and a backend whose
#: operations are counted
CASES = {
    'elsa': (lambda B: elsa((B, 5, 6), 2, 4, 3), 'neighbourhood_sum', 'both', 'shifted'),
    'elsa-plain': (lambda B: elsa((B, 7, 9), 2, 4, 3, ghosts=()), 'neighbourhood_sum', 'both', 'shifted'),
    'axial': (lambda B: axial((B, 5, 6), 2, 3, 4, 5, 1), 'axial_sum', 'none', 'batched'),
    'aggregated': (lambda B: aggregated((B, 5, 6), 2, 4, 3, 2, 3), 'aggregated_attention', 'both', 'shifted'),
    'neighbourhood': (lambda B: neighbourhood((B, 5, 6), 2, 4, 3), 'neighbourhood_attention', 'both', 'reference'),
    'grouped-conv': (lambda B: convolution(grouped_conv, (B, 5, 6), 8, 4, 3), 'grouped_conv', 'backward', 'reference'),
    'depthwise-conv': (
        lambda B: convolution(depthwise_conv, (B, 5, 6), 8, 1, 5),
        'depthwise_conv_weight',
        'backward',
        'reference',
    ),
}
every_case = pytest.mark.parametrize('name', CASES)


def build(name, B=2, dtype=torch.float32):
    operator, shapes = CASES[name][0](B)
    return operator, [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes.values()]


def called_by(name, dtype=torch.float32):
    """Names of the functions of the library that a step calls."""
    _, forward, half, _ = CASES[name]
    kinds = half if dtype == torch.bfloat16 else 'backward' if name == 'depthwise-conv' else 'both'
    return [forward] * (kinds == 'both') + [f'{forward}_backward'] * (kinds != 'none')


def step(operator, tensors):
    out = operator(*tensors)
    return [out, *torch.autograd.grad(out.square().sum(), tensors)]


@pytest.fixture
def calls(monkeypatch):
    """Names of the functions of the library that were called."""
    found, compiled = [], library._C

    class Watched:
        def __getattr__(self, name):
            found.append(name)
            return getattr(compiled, name)

    monkeypatch.setattr(library, '_C', Watched())
    return found


@every_case
def test_when_it_is_chosen(name, calls, monkeypatch):
    """Float32 on the CPU, and half precision where the code takes it. Other paths serve float64, fake tensors and
    torch.func, and all if the library is missing."""
    for dtype in (torch.float32, torch.bfloat16):
        step(*build(name, dtype=dtype))
        assert calls == called_by(name, dtype)
        calls.clear()
    step(*build(name, dtype=torch.float64))
    operator, tensors = build(name)
    assert operator(*(x.detach().to('meta') for x in tensors)).is_meta
    torch.func.vmap(operator)(*(x[None] for x in tensors))
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    step(operator, tensors)
    assert not calls


@every_case
def test_refusals(name, monkeypatch):
    """A dtype that the code does not take, a transform and a missing library end in a sentence."""
    operator, tensors = build(name)
    path = partial(operator, backend='cpp')
    for call, given in ((path, [x.double() for x in tensors]), (torch.func.vmap(path), [x[None] for x in tensors])):
        with pytest.raises(ValueError, match="backend 'cpp' takes tensors of .* bits on the CPU.*torch.func; here are"):
            call(*given)
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    with pytest.raises(ValueError, match="library of backend 'cpp' is missing"):
        path(*tensors)


@every_case
def test_no_images(name):
    """They have an empty result, and what all images share has a gradient of zero."""
    operator, tensors = build(name, 0)
    out, *gradients = step(partial(operator, backend='cpp'), tensors)
    assert len(out) == 0 and not any(x.any() for x in gradients)


@every_case
def test_operations_are_counted(name):
    """A count of operations is the same whichever path runs."""
    operator, tensors = build(name)
    counts = [count_operations(partial(operator, *tensors, backend=backend)) for backend in ('cpp', CASES[name][-1])]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize('name, products', [('grouped-conv', 4 * 9), ('depthwise-conv', 25)])
def test_operations_of_gradients(name, products):
    """A step has three times the products of the convolution, whichever path runs."""
    operator, tensors = build(name)
    for backend in ('cpp', 'reference'):
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            operator(*tensors, backend=backend).sum().backward()
        assert counter.get_total_flops() == 3 * 2 * 2 * 5 * 6 * 8 * products


class Module(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, *tensors):
        return self.operator(*tensors)


@every_case
@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_kept_in_graphs(name, calls):
    """A compiled graph calls the C++ code, forward and backward, and has the gradients of the reference. An exported
    program has torch's operators."""
    torch._dynamo.reset()  # torch counts graphs of a function in all tests
    operator, tensors = build(name)
    found = step(torch.compile(operator, fullgraph=True, backend='aot_eager'), tensors)
    assert calls == called_by(name)
    torch.testing.assert_close(found, step(partial(operator, backend='reference'), tensors), atol=1e-4, rtol=1e-4)
    program = torch.export.export(Module(operator), tuple(x.detach() for x in tensors), strict=False)
    assert 'ops.mmattn' not in str(program)
