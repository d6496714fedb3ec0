"""Neighbourhood attention beside explicit loops. NATTEN's C++ code, version 0.14.6, gives the same to 3e-15."""

import itertools
import math
from functools import partial

import pytest
import torch

from mmattn.ops import library, neighbourhood, neighbourhood_attention
from mmattn.ops.neighbourhood import cpp
from mmattn.packages import version_numbers

compiled = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def neighbours(pixel, size, k, dilation):
    """Along an axis: those of the pixel's line, pixels of the same remainder, moved into the axis at its ends."""
    line = range(pixel % dilation, max(size, k * dilation), dilation)
    start = min(max(line.index(pixel) - k // 2, 0), len(line) - k)
    return line[start : start + k]


def by_hand(query, key, value, bias, k, dilation=1, beyond=None):
    """One pixel, head and neighbour at a time."""
    B, H, W, heads, d = query.shape
    out = torch.zeros_like(query)
    for b, y, x, n in torch.cartesian_prod(*map(torch.arange, (B, H, W, heads))).tolist():
        logits, values = [], []
        for i, j in itertools.product(neighbours(y, H, k, dilation), neighbours(x, W, k, dilation)):
            inside = i < H and j < W
            outside = query.new_zeros(2, d) if beyond is None else beyond[:, n]
            of_key, of_value = (key[b, i, j, n], value[b, i, j, n]) if inside else outside
            logit = query[b, y, x, n] @ of_key / math.sqrt(d)
            if bias is not None:
                logit = logit + bias[n, (i - y) // dilation + k - 1, (j - x) // dilation + k - 1]
            logits.append(logit)
            values.append(of_value)
        out[b, y, x, n] = torch.stack(logits).softmax(0) @ torch.stack(values)
    return out


def make_inputs(B, H, W, heads, d, k, bias=True, beyond=True):
    shapes = [(B, H, W, heads, d)] * 3
    shapes += [(heads, 2 * k - 1, 2 * k - 1) if bias else None, (2, heads, d) if beyond else None]
    return [None if shape is None else torch.randn(shape, dtype=torch.float64) for shape in shapes]


def gradients(operator, inputs, upstream, *settings, **named):
    """The result of an operator and the gradients of its tensors."""
    inputs = [None if x is None else x.detach().requires_grad_() for x in inputs]
    *maps, beyond = inputs
    out = operator(*maps, *settings, beyond=beyond, **named)
    leaves = [x for x in inputs if x is not None]
    return [out, *torch.autograd.grad(out, leaves, upstream.to(out), allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize(
    'size, k, dilation, bias, beyond',
    [
        ((2, 5, 6), 3, 1, True, False),
        ((1, 7, 9), 3, 2, True, False),  # lines of different lengths
        ((1, 4, 8), 3, 2, False, True),  # rows are continued
        ((1, 2, 1), 5, 1, True, True),
        ((1, 3, 2), 3, 5, True, False),  # every pixel is alone on its line
    ],
)
def test_reference_is_the_equation(size, k, dilation, bias, beyond):
    """Windows at the border, lines of a dilation, the order of the bias, and pixels beyond small maps."""
    inputs = make_inputs(*size, 2, 3, k, bias, beyond)
    upstream = torch.randn_like(inputs[0])
    results = [
        gradients(path, inputs, upstream, k, dilation)
        for path in (by_hand, partial(neighbourhood_attention, backend='reference'))
    ]
    torch.testing.assert_close(*results)


@compiled
def test_half_precision_and_large_logits():
    """Sums are in float32 whatever the dtype is; exponentials do not overflow, and far weights are zero."""
    query, key, value, bias, beyond = make_inputs(1, 6, 9, 2, 8, 3)
    exact = neighbourhood_attention(query, key, value, bias, 3, backend='reference')
    for dtype, backend in itertools.product((torch.bfloat16, torch.float16), ('reference', 'cpp', None)):
        half = neighbourhood_attention(*(x.to(dtype) for x in (query, key, value)), bias.float(), 3, backend=backend)
        assert half.dtype == dtype
        assert (half - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()
    large = [300 * query, key, value, bias]
    exact = neighbourhood_attention(*large, 3, backend='reference')
    found = neighbourhood_attention(*(x.float() for x in large), 3, backend='cpp')
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-4)


@compiled
def test_dropout_has_no_code():
    x = torch.zeros(1, 2, 2, 1, 4)
    assert neighbourhood.fastest(x, x, x, 0.1) == 'reference'
    with pytest.raises(ValueError, match="backend 'cpp' needs dropout_p=0, not 0.1"):
        neighbourhood_attention(x, x, x, None, 3, 1, 0.1, 'cpp')


@compiled
@pytest.mark.slow
@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_kept_in_graphs(monkeypatch):
    """One compiled graph serves all sizes, also maps smaller than the neighbourhood, and calls the C++ code, forward
    and backward."""
    inputs = [x.float() for x in make_inputs(1, 6, 7, 2, 4, 3)]  # no side is that of the table
    gradients(neighbourhood_attention, inputs, inputs[0], 3)  # checks the C++ code before calls are counted
    called, compilations, call = [], [], cpp.call
    monkeypatch.setattr(cpp, 'call', lambda name, *others: (called.append(name), call(name, *others)))

    def backend(graph, given):
        compilations.append(size)
        return torch._dynamo.lookup_backend('aot_eager')(graph, given)

    operator = torch.compile(neighbourhood_attention, fullgraph=True, dynamic=True, backend=backend)
    for size in ((6, 7), (2, 9)):
        inputs[:3] = [torch.randn(1, *size, 2, 4) for _ in 'qkv']
        upstream = torch.randn_like(inputs[0])
        called.clear()
        found = gradients(operator, inputs, upstream, 3)
        assert called == ['neighbourhood_attention', 'neighbourhood_attention_backward']
        expected = gradients(neighbourhood_attention, inputs, upstream, 3, backend='reference')
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert set(compilations) == {(6, 7)}
