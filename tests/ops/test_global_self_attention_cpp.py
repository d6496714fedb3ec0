"""The C++ code of axial attention: setup.py compiles it where mmattn is installed."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmattn.analysis import count_operations
from mmattn.ops import axial_attention
from mmattn.ops.global_self_attention import cpp
from mmattn.packages import version_numbers
from tests.ops.measuring import torch_threads


@given(
    B=st.integers(1, 2),
    H=st.integers(1, 21),
    W=st.integers(1, 21),
    heads=st.integers(1, 3),
    k=st.sampled_from([1, 8, 11, 16]),
    v=st.sampled_from([3, 8, 24]),
    L=st.integers(1, 12),
    dim=st.sampled_from([1, 2]),
    beyond=st.sampled_from(['stretch', 'mask']),
    threads=st.sampled_from([1, 3]),
)
def test_code_is_the_reference(B, H, W, heads, k, v, L, dim, beyond, threads):
    """The output and all gradients are those of the reference in float64, for any size and table, and for parts of a
    projection."""
    inputs = torch.randn(B, H, W, heads, k), torch.randn(B, H, W, heads * v + 3), torch.randn(2 * L - 1, k)
    grad = torch.randn(B, H, W, heads, v)
    results = []
    with torch_threads(threads):
        for backend, dtype in (('reference', torch.float64), ('cpp', torch.float32)):
            query, fused, table = given_inputs = [x.to(dtype).requires_grad_() for x in inputs]
            value = fused[..., 2:-1].unflatten(-1, (heads, v))
            out = axial_attention(query, value, table, dim, beyond, backend)
            results.append([out, *torch.autograd.grad(out, given_inputs, grad.to(dtype))])
    for expected, actual in zip(*results):
        assert actual.is_contiguous()
        torch.testing.assert_close(actual.double(), expected, atol=2e-6 * expected.abs().max().item(), rtol=0)


def test_when_it_is_chosen(monkeypatch):
    """The C++ code serves float32 on the CPU by default; keys, a softmax and other dtypes take another path."""
    calls = []
    query, table = torch.randn(1, 4, 5, 2, 3), torch.randn(7, 3)
    monkeypatch.setattr(cpp, '_sum', lambda q, v, table, dim, reach: calls.append(dim) or v)
    axial_attention(query, query, table, 1, key=query)
    axial_attention(query, query, table, 1, softmax=True)
    axial_attention(query.double(), query.double(), table.double(), 1)
    assert not calls
    axial_attention(query, query, table, 1)
    assert calls == [1]


def test_refusals():
    query, table = torch.randn(1, 4, 5, 2, 3), torch.randn(7, 3)
    with pytest.raises(ValueError, match="backend 'cpp' has neither keys nor softmax"):
        axial_attention(query, query, table, 1, backend='cpp', softmax=True)
    with pytest.raises(ValueError, match="backend 'cpp' takes tensors of 32 bits"):
        axial_attention(query.double(), query.double(), table, 1, backend='cpp')


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
@pytest.mark.parametrize('dim', [1, 2])
def test_kept_in_graphs(monkeypatch, dim):
    """A compiled graph calls the C++ code, forward and backward, and has the gradients of the reference."""
    called = []
    call = cpp.call
    monkeypatch.setattr(cpp, 'call', lambda name, *others: (called.append(name), call(name, *others)))
    query, value = torch.randn(1, 4, 5, 2, 3, requires_grad=True), torch.randn(1, 4, 5, 2, 6, requires_grad=True)
    table = torch.randn(9, 3, requires_grad=True)
    axial_attention(query, value, table, dim)  # checks the C++ code before calls are counted
    called.clear()
    compiled = torch.compile(axial_attention, fullgraph=True, backend='aot_eager')
    results = []
    for path in (compiled, partial(axial_attention, backend='reference')):
        out = path(query, value, table, dim)
        results.append([out, *torch.autograd.grad(out.square().sum(), (query, value, table))])
    assert called == ['axial_sum', 'axial_sum_backward']
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_operations_are_counted():
    """A count of operations is the same whichever path runs."""
    query, table = torch.randn(2, 4, 5, 2, 3), torch.randn(7, 3)
    counts = [
        count_operations(partial(axial_attention, query, query, table, 2, backend=name)) for name in ('cpp', 'batched')
    ]
    assert counts[0] == counts[1] > 0
