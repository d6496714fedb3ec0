"""What all operators with C++ code have in common: setup.py compiles it where mmattn is installed."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count_operations
from mmattn.analysis.complexity import operator_formulas
from mmattn.ops import axial_attention, elsa_attention, library, neighbourhood_attention
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.grouped_conv import grouped_conv
from mmattn.packages import version_numbers

pytestmark = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


class Case(NamedTuple):
    """An operator, called with tensors of these shapes and a backend."""

    operator: Callable
    batched: list[tuple[int, ...]]  #: after the dimension of the batch
    others: list[tuple[int, ...]]
    calls: list[str]  #: functions of the library that a step of training calls
    half: list[str]  #: those in bfloat16
    other: str = 'reference'  #: a backend whose operations are counted


def neighbourhood(q, k, v, bias, backend=None):
    return neighbourhood_attention(q, k, v, bias, 3, backend=backend)


SUMS = ['neighbourhood_sum', 'neighbourhood_sum_backward']
ATTENTION = ['neighbourhood_attention', 'neighbourhood_attention_backward']
LINES = ['axial_sum', 'axial_sum_backward']
GROUPS, OWN = ['grouped_conv', 'grouped_conv_backward'], ['depthwise_conv_weight_backward']
QUERY, VALUE = (5, 6, 2, 3), (5, 6, 2, 4)
CASES = {
    'elsa': Case(elsa_attention, [(5, 6, 2, 9), (5, 6, 8)], [(8, 3, 3), (8, 3, 3)], SUMS, SUMS, 'shifted'),
    'elsa-plain': Case(elsa_attention, [(7, 9, 2, 9), (7, 9, 8)], [], SUMS, SUMS, 'shifted'),
    'columns': Case(partial(axial_attention, dim=1), [QUERY, VALUE], [(9, 3)], LINES, [], 'batched'),
    'rows': Case(partial(axial_attention, dim=2), [QUERY, VALUE], [(7, 3)], LINES, [], 'batched'),
    'neighbourhood': Case(neighbourhood, [VALUE] * 3, [(2, 5, 5)], ATTENTION, ATTENTION),
    'grouped-conv': Case(grouped_conv, [(5, 6, 8)], [(8, 4, 3, 3), (8,)], GROUPS, GROUPS[1:]),
    'depthwise-conv': Case(depthwise_conv, [(5, 6, 8)], [(8, 1, 5, 5), (8,)], OWN, OWN),
}
every_case = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


def inputs(case, B=2, dtype=torch.float32):
    shapes = [(B, *shape) for shape in case.batched] + case.others
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


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
def test_when_it_is_chosen(case, calls, monkeypatch):
    """Float32 on the CPU, and half precision where the code takes it. Other paths serve float64, fake tensors and
    torch.func, and all if the library is missing."""
    step(case.operator, inputs(case))
    assert calls == case.calls
    calls.clear()
    step(case.operator, inputs(case, dtype=torch.bfloat16))
    assert calls == case.half
    calls.clear()
    step(case.operator, inputs(case, dtype=torch.float64))
    assert case.operator(*(x.detach().to('meta') for x in inputs(case))).is_meta
    torch.func.vmap(case.operator)(*(x[None] for x in inputs(case)))
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    step(case.operator, inputs(case))
    assert not calls


@every_case
def test_refusals(case, monkeypatch):
    """A dtype that the code does not take, a transform and a missing library end in a sentence."""
    path = partial(case.operator, backend='cpp')
    for call, dtype in ((path, torch.float64), (torch.func.vmap(path), torch.float32)):
        with pytest.raises(ValueError, match="backend 'cpp' takes tensors of .* bits on the CPU.*torch.func; here are"):
            call(*(x[None] if call is not path else x for x in inputs(case, dtype=dtype)))
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    with pytest.raises(ValueError, match="library of backend 'cpp' is missing"):
        path(*inputs(case))


@every_case
def test_no_images(case):
    """They have an empty result, and what all images share has a gradient of zero."""
    out, *gradients = step(partial(case.operator, backend='cpp'), inputs(case, 0))
    assert len(out) == 0 and not any(x.any() for x in gradients)


@every_case
def test_operations_are_counted(case):
    """A count of operations is the same whichever path runs."""
    counts = [count_operations(partial(case.operator, *inputs(case), backend=name)) for name in ('cpp', case.other)]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize('name, products', [('grouped-conv', 4 * 9), ('depthwise-conv', 25)])
def test_operations_of_gradients(name, products):
    """A step has three times the products of the convolution, whichever path runs."""
    for backend in ('cpp', 'reference'):
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            CASES[name].operator(*inputs(CASES[name]), backend=backend).sum().backward()
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
def test_kept_in_graphs(case, calls):
    """A compiled graph calls the C++ code, forward and backward, and has the gradients of the reference. An exported
    program has torch's operators."""
    torch._dynamo.reset()  # torch counts graphs of a function in all tests
    tensors = inputs(case)
    found = step(torch.compile(case.operator, fullgraph=True, backend='aot_eager'), tensors)
    assert calls == case.calls
    torch.testing.assert_close(found, step(partial(case.operator, backend='reference'), tensors), atol=1e-4, rtol=1e-4)
    program = torch.export.export(Module(case.operator), tuple(x.detach() for x in tensors), strict=False)
    assert 'ops.mmattn' not in str(program)
