"""The C++ code of the ELSA operator: setup.py compiles it where mmattn is installed."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmattn.analysis import count_operations
from mmattn.ops import elsa, elsa_attention, library, neighbourhood_sum
from mmattn.ops.elsa import cpp
from mmattn.packages import version_numbers
from tests.ops.measuring import torch_threads
from tests.ops.test_elsa import make_inputs, sum_by_hand


@pytest.fixture(autouse=True)
def compiled():
    assert library.HAS_LIBRARY, 'the C++ code was not compiled: pip install --no-deps --no-build-isolation -e .'


@given(
    B=st.integers(0, 2),
    H=st.integers(1, 9),
    W=st.integers(1, 12),
    heads=st.integers(1, 3),
    width=st.sampled_from([1, 7, 8, 16, 33, 40]),
    k=st.sampled_from([1, 3, 7]),
    dilation=st.integers(1, 3),
    mul=st.booleans(),
    add=st.booleans(),
    threads=st.sampled_from([1, 3]),
)
def test_code_is_the_reference(B, H, W, heads, width, k, dilation, mul, add, threads):
    """The output and all gradients are those of the reference in float64, for any size, any number of channels, a value
    that is a part of a projection, and more threads than rows."""
    logits, _, *ghosts = make_inputs(B, H, W, heads, width, k, mul, add)
    inputs = logits, torch.randn(B, H, W, heads * width + 3), *ghosts
    grad = torch.randn(B, H, W, heads * width)
    results = []
    with torch_threads(threads):
        for backend, dtype in (('reference', torch.float64), ('cpp', torch.float32)):
            given_inputs = [None if x is None else x.detach().to(dtype).requires_grad_() for x in inputs]
            logits, fused, *ghosts = given_inputs
            out = elsa_attention(logits, fused[..., 2:-1], *ghosts, dilation, backend=backend)
            assert out.dtype == dtype
            results.append([out, *torch.autograd.grad(out, [x for x in given_inputs if x is not None], grad.to(dtype))])
    for expected, actual in zip(*results):
        torch.testing.assert_close(actual.double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize('mul', [None, (6, 9), (2, 6, 9)])
def test_sum_with_filters_of_each_image(mul):
    """The sum with any weights and filters of all images or of each, and its gradients."""
    inputs = [torch.randn(2, 3, 4, 2, 9), torch.randn(2, 3, 4, 6), None if mul is None else torch.randn(mul)]
    inputs = [None if x is None else x.requires_grad_() for x in inputs]
    leaves = [x for x in inputs if x is not None]
    out = neighbourhood_sum(*inputs, dilation=2)
    assert out.grad_fn.name().startswith('neighbourhood_sum')
    exact = sum_by_hand(*(None if x is None else x.double() for x in inputs), 2)
    torch.testing.assert_close(out.double(), exact, atol=1e-5, rtol=1e-5)
    for actual, expected in zip(
        torch.autograd.grad(out.square().sum(), leaves), torch.autograd.grad(exact.square().sum(), leaves)
    ):
        torch.testing.assert_close(actual, expected)


def test_gradients_of_ghosts_keep_their_digits():
    """Sums over 65536 pixels are not kept in float32, which would lose four digits."""
    value, grad = torch.rand(1, 256, 256, 8), torch.rand(1, 256, 256, 8)
    add = torch.zeros(8, 1, 1, requires_grad=True)
    elsa_attention(torch.zeros(1, 256, 256, 1, 1), value, None, add, backend='cpp').backward(grad)
    exact = (value.double() * grad.double()).sum((0, 1, 2))
    assert (add.grad.flatten() / exact - 1).abs().max() < 1e-6


def test_when_it_is_chosen():
    """The C++ code serves the CPU, also in half precision. Fake tensors and float64 take another path."""
    x = torch.zeros(1, 2, 2, 1, 9)
    with torch._subclasses.FakeTensorMode():
        fake = torch.zeros(1, 2, 2, 1, 9)
    assert [elsa.fastest(y, y) for y in (x, x.bfloat16())] == ['cpp'] * 2
    assert [elsa.fastest(y, y) for y in (x.double(), x.to('meta'), fake)] == ['shifted'] * 3


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_kept_in_graphs(monkeypatch):
    """A compiled graph calls the C++ code, forward and backward, for all kinds of ghost matrices and other sizes; an
    exported program does not."""
    called = []
    call = cpp.call
    monkeypatch.setattr(cpp, 'call', lambda name, *others: (called.append(name), call(name, *others)))
    compiled = torch.compile(elsa_attention, fullgraph=True, backend='aot_eager')
    for H, W, mul, add in ((5, 6, True, True), (7, 9, True, True), (5, 6, False, True), (5, 6, False, False)):
        inputs = make_inputs(1, H, W, 2, 8, 3, mul, add, torch.float32)
        leaves = [x.requires_grad_() for x in inputs if x is not None]
        results = []
        for path in (compiled, partial(elsa_attention, backend='reference')):
            called.clear()
            out = path(*inputs)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
            assert called == (['neighbourhood_sum', 'neighbourhood_sum_backward'] if path is compiled else [])
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    program = torch.export.export(Operator(), tuple(x.detach() for x in inputs[:2]), strict=False)
    assert 'ops.mmattn' not in str(program)


class Operator(torch.nn.Module):
    def forward(self, logits, value):
        return elsa_attention(logits, value)


def test_refusals(monkeypatch):
    """A dtype that the code does not serve and a missing library end in a sentence."""
    logits, value = torch.zeros(1, 2, 2, 1, 9, requires_grad=True), torch.ones(1, 2, 2, 4)
    with pytest.raises(
        ValueError,
        match="backend 'cpp' takes tensors of at most 32 bits on the CPU.*torch.float32 on cpu, torch.float64 on cpu",
    ):
        elsa_attention(logits, value.double(), backend='cpp')
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    assert elsa.fastest(logits, value) == 'shifted'
    with pytest.raises(ValueError, match="library of backend 'cpp' is missing"):
        elsa_attention(logits, value, backend='cpp')


def test_operations_are_counted():
    """A count of operations is the same whichever path runs."""
    inputs = make_inputs(1, 5, 6, 2, 4, 3, True, True, torch.float32)
    counts = [count_operations(partial(elsa_attention, *inputs, backend=name)) for name in ('cpp', 'shifted')]
    assert counts[0] == counts[1] > 0
