"""The C++ code of depth-wise convolutions: setup.py compiles it where mmattn is installed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis.complexity import operator_formulas
from mmattn.layers import DepthwiseConv, DetailMLP
from mmattn.ops import depthwise_conv as module
from mmattn.ops import library
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.packages import version_numbers
from tests.ops.measuring import differences, torch_threads

needs_library = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def results(backend, x, weight, bias, grad, dtype=torch.float32, channels=slice(None)):
    """The output and the gradients of channels of x."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    out = depthwise_conv(leaves[0][..., channels], *leaves[1:], *[None] * (3 - len(leaves)), backend)
    return [out, *torch.autograd.grad(out, leaves, grad.to(dtype))]


@pytest.fixture
def calls(monkeypatch):
    """Names of the functions of the library that were called, after the code was checked."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        for bias in (None, torch.ones(8, dtype=dtype)):
            depthwise_conv(
                torch.ones(1, 3, 3, 8, dtype=dtype), torch.ones(8, 1, 5, 5, dtype=dtype).requires_grad_(), bias
            )
    monkeypatch.setattr(module, 'call', lambda name, *others: (found.append(name), library.call(name, *others)))
    return found


@needs_library
@given(
    B=st.integers(1, 3),
    H=st.integers(1, 19),
    W=st.integers(1, 37),
    C=st.sampled_from([1, 7, 16, 27, 64, 81]),
    k=st.sampled_from([3, 5, 7]),
    has_bias=st.booleans(),
    threads=st.sampled_from([1, 2, 5]),
    transposed=st.booleans(),
)
def test_code_is_the_reference(B, H, W, C, k, has_bias, threads, transposed):
    """The output and all gradients are those of torch's convolution in float64, for any size, for maps smaller than the
    filters, with any number of threads, for parts of a projection, and for gradients in another layout."""
    # Sums of positive numbers do not cancel.
    x, weight, bias = torch.rand(B, H, W, C + 5), torch.rand(C, 1, k, k), torch.rand(C) if has_bias else None
    grad = torch.rand(B, W, H, C).transpose(1, 2) if transposed else torch.rand(B, H, W, C)
    part = slice(2, -3)
    expected = results('reference', x, weight, bias, grad, torch.float64, part)
    with torch_threads(threads):
        found = results('cpp', x, weight, bias, grad, channels=part)
    assert max(differences(found, expected)) < 3e-6


@needs_library
@pytest.mark.parametrize('dtype, tolerance', [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
def test_half_precision(dtype, tolerance):
    """Sums are in float32: gradients are rounded once, to the dtype of the weights."""
    x, weight, bias = torch.randn(4, 33, 40, 24), torch.randn(24, 1, 3, 3), torch.randn(24)
    inputs = [tensor.to(dtype) for tensor in (x, weight, bias, torch.randn(4, 33, 40, 24))]
    found, expected = results('cpp', *inputs, dtype), results('reference', *inputs, torch.float64)
    assert {tensor.dtype for tensor in found} == {dtype}
    assert max(differences(found, expected)) < tolerance


@needs_library
@pytest.mark.parametrize('shape', [(1, 75, 131, 16), (40, 14, 14, 72), (3, 67, 64, 16), (2, 9, 4099, 8)])
def test_large_maps(shape):
    """Maps of several tiles, and tasks of several images, whose pixels have a mean: roundings do not add up, and do not
    depend on the number of threads."""
    x, grad = torch.randn(2, *shape) + 1
    weight, bias = torch.randn(shape[3], 1, 5, 5), torch.randn(shape[3])
    expected = results('reference', x, weight, bias, grad, torch.float64)
    found = []
    for threads in (1, 3):
        with torch_threads(threads):
            found.append(results('cpp', x, weight, bias, grad))
    assert max(differences(found[0], expected)) < 3e-6
    assert max(differences(found[0][2:], expected[2:])) < 8e-7
    assert all(x.equal(y) for x, y in zip(*(each[2:] for each in found)))


@needs_library
def test_no_images():
    """They have an empty result, and the filters have no gradient."""
    x, weight, bias = torch.randn(0, 3, 4, 8), torch.randn(8, 1, 3, 3), torch.randn(8)
    out, *gradients = results('cpp', x, weight, bias, x)
    assert out.shape == gradients[0].shape == x.shape and not any(x.any() for x in gradients)


@needs_library
def test_when_it_is_chosen(calls, monkeypatch):
    """The C++ code serves where filters or biases need gradients and it is faster."""

    def count(x, weight, bias=None):
        calls.clear()
        depthwise_conv(x.requires_grad_(), weight, bias).sum().backward()
        return len(calls)

    x, weight, bias = torch.randn(1, 4, 5, 8), torch.randn(8, 1, 5, 5).requires_grad_(), torch.randn(8).requires_grad_()
    half = [tensor.detach().bfloat16().requires_grad_() for tensor in (x, weight[..., 1:-1, 1:-1])]
    assert count(x, weight) == count(x, weight.detach(), bias) == count(*half) == 1
    assert 'Depthwise' not in depthwise_conv(x, weight.detach()).grad_fn.name()
    assert count(x, weight[..., 1:-1, 1:-1]) == 0  # k = 3 in float32
    assert count(x, torch.randn(8, 1, 9, 9).requires_grad_()) == 0
    assert count(x.detach().double(), weight.detach().double().requires_grad_()) == 0
    assert depthwise_conv(x.to('meta'), weight.to('meta')).is_meta
    torch.func.grad(lambda weight: depthwise_conv(x, weight).sum())(weight)
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    assert count(x, weight) == 0


@needs_library
def test_only_what_is_needed():
    """Nothing is computed for what needs no gradient: a pass has the operations of two convolutions."""
    x, weight = torch.randn(1, 4, 5, 8), torch.randn(8, 1, 5, 5)
    for inputs in ((x.clone().requires_grad_(), weight), (x, weight.clone().requires_grad_())):
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            depthwise_conv(*inputs, backend='cpp').sum().backward()
        assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 8 * 25


@needs_library
@pytest.mark.parametrize('inside', [False, True])
@pytest.mark.parametrize('make', [DetailMLP, lambda *_: DepthwiseConv(8, kernel_size=5)])
def test_autocast(calls, make, inside):
    """The result is in autocast's dtype, the gradients of filters are in theirs and those of the reference, whether
    autocast is on in the backward pass or not."""
    layer, x = make(8, 16), torch.randn(2, 6, 5, 8)
    parameters = list(layer.parameters())
    expected = torch.autograd.grad(layer(x).square().sum(), parameters)
    calls.clear()
    with torch.autocast('cpu', torch.bfloat16):
        out = layer(x)
        loss = out.float().square().sum()
        found = torch.autograd.grad(loss, parameters) if inside else None
    assert out.dtype == torch.bfloat16
    found = torch.autograd.grad(loss, parameters) if found is None else found
    assert calls == ['depthwise_conv_weight_backward'] and {x.dtype for x in found} == {torch.float32}
    assert max(differences(found, expected)) < 0.05
    x = torch.randn(2, 6, 5, 8).requires_grad_()
    weight = torch.randn(8, 1, 5, 5).requires_grad_()
    outs = []
    for backend in ('cpp', 'reference'):
        with torch.autocast('cpu', torch.bfloat16):  # of its own: that of torch 2.1 keeps weights without gradients
            outs.append(depthwise_conv(x, weight, backend=backend))
    assert {out.dtype for out in outs} == {torch.bfloat16}
    found, expected = (torch.autograd.grad(out.float().square().sum(), (x, weight)) for out in outs)
    assert {x.dtype for x in found} == {torch.float32} and max(differences(found, expected)) < 0.02


@needs_library
def test_a_backward_pass_is_not_converted():
    """A backward pass inside of autocast, of a forward pass outside of it, stays in float32."""
    x, weight, grad = torch.randn(2, 6, 5, 8), torch.randn(8, 1, 5, 5), torch.randn(2, 6, 5, 8)
    expected = results('cpp', x, weight, None, grad)
    inputs = [x.requires_grad_(), weight.requires_grad_()]
    out = depthwise_conv(*inputs, backend='cpp')
    with torch.autocast('cpu', torch.bfloat16):
        found = torch.autograd.grad(out, inputs, grad)
    assert all(x.equal(y) for x, y in zip(found, expected[1:]))


@pytest.mark.parametrize(
    'x, weight, bias, words',
    [
        ((4, 5, 8), (8, 1, 3, 3), None, r'x must be \(B, H, W, C\) and weight \(C, 1, k, k\), not \(4, 5, 8\)'),
        ((1, 4, 5, 9), (8, 1, 3, 3), None, r'x must be .*, not \(1, 4, 5, 9\) and \(8, 1, 3, 3\)'),
        ((1, 4, 5, 8), (8, 2, 3, 3), None, r'x must be .* and \(8, 2, 3, 3\)'),
        ((1, 4, 5, 8), (8, 1, 3, 5), None, 'filters of weight must be k x k with odd k, not 3 x 5'),
        ((1, 4, 5, 8), (8, 1, 2, 2), None, 'with odd k, not 2 x 2'),
        ((1, 0, 5, 8), (8, 1, 3, 3), None, r'x must have no empty dimension but the first, not \(1, 0, 5, 8\)'),
        ((1, 4, 5, 8), (8, 1, 3, 3), (9,), r'bias must be \(8,\), not \(9,\)'),
    ],
)
def test_wrong_shapes(x, weight, bias, words):
    with pytest.raises(ValueError, match=words):
        depthwise_conv(torch.ones(x), torch.ones(weight), None if bias is None else torch.ones(bias))


@needs_library
def test_what_the_code_does_not_take():
    x, weight = torch.ones(1, 4, 5, 8), torch.ones(8, 1, 9, 9)
    with pytest.raises(ValueError, match="filters of backend 'cpp' must have a side of 3, 5 or 7, not 9"):
        depthwise_conv(x, weight, backend='cpp')
    with pytest.raises(ValueError, match="backend 'cpp' takes tensors of at most 32 bits"):
        depthwise_conv(x.double(), weight.double(), backend='cpp')
    with pytest.raises(ValueError, match=r'grad and x must be \(B, H, W, C\), not \(1, 4, 4, 8\) and \(1, 4, 5, 8\)'):
        torch.ops.mmattn.depthwise_conv_weight_backward(x[:, :, 1:], x, 3)
    with pytest.raises(ValueError, match='takes float32 or bfloat16 tensors on one device'):
        torch.ops.mmattn.depthwise_conv_weight_backward(x, x.bfloat16(), 3)


@needs_library
@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_kept_in_graphs(calls):
    """A compiled graph calls the C++ code and has the gradients of the reference. An exported one has torch's
    convolution."""
    x, weight, bias, grad = torch.randn(1, 4, 5, 8), torch.randn(8, 1, 5, 5), torch.randn(8), torch.randn(1, 4, 5, 8)
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = torch.compile(depthwise_conv, fullgraph=True, backend='aot_eager')(*inputs)
    found = [out, *torch.autograd.grad(out, inputs, grad)]
    assert calls == ['depthwise_conv_weight_backward']
    assert max(differences(found, results('reference', x, weight, bias, grad))) < 3e-6
    exported = torch.export.export(DepthwiseConv(12, kernel_size=5), (torch.randn(1, 4, 5, 12),))
    assert 'mmattn' not in str(exported.graph)


@needs_library
def test_operations_are_counted():
    """A count of operations is the same whichever path runs, forward and backward."""
    x, weight, bias = torch.randn(2, 4, 5, 8), torch.randn(8, 1, 3, 3), torch.randn(8)
    counts = []
    for backend in ('cpp', 'reference'):
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            results(backend, x, weight, bias, x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 2 * 4 * 5 * 8 * 9
