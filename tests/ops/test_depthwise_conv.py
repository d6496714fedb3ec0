"""The C++ code of depth-wise convolutions: setup.py compiles it where mmattn is installed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis.complexity import operator_formulas
from mmattn.ops import library
from mmattn.ops.depthwise_conv import depthwise_conv, fastest
from tests.ops.measuring import differences, torch_threads

needs_library = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def results(backend, x, weight, bias, grad, dtype=torch.float32, channels=slice(None)):
    """The output and the gradients of channels of x."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    out = depthwise_conv(leaves[0][..., channels], *leaves[1:], *[None] * (3 - len(leaves)), backend)
    return [out, *torch.autograd.grad(out, leaves, grad.to(dtype))]


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
@pytest.mark.parametrize('shape', [(1, 75, 131, 16), (40, 14, 14, 72), (2, 9, 4099, 8)])
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
def test_when_it_is_chosen():
    """The C++ code serves where filters or biases need gradients and it is faster: not for k = 3 in float32."""
    x, weight, bias = torch.randn(1, 4, 5, 8), torch.randn(8, 1, 5, 5), torch.randn(8)
    assert [fastest(x, weight.requires_grad_(), None), fastest(x, weight.detach(), bias.requires_grad_())] == [
        'cpp'
    ] * 2
    small, large = (torch.randn(8, 1, k, k).requires_grad_() for k in (3, 9))
    assert fastest(x.bfloat16(), small.bfloat16(), None) == 'cpp'
    assert fastest(x, small, None) == fastest(x, large, None) == fastest(x, weight.detach(), None) == 'reference'


@needs_library
def test_only_what_is_needed():
    """Nothing is computed for what needs no gradient: a pass has the operations of two convolutions."""
    x, weight = torch.randn(1, 4, 5, 8), torch.randn(8, 1, 5, 5)
    for inputs in ((x.clone().requires_grad_(), weight), (x, weight.clone().requires_grad_())):
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            depthwise_conv(*inputs, backend='cpp').sum().backward()
        assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 8 * 25


@needs_library
def test_autocast():
    """The result is in autocast's dtype, the gradients are float32 and those of the reference. A backward pass inside
    of autocast, of a forward pass outside of it, stays in float32."""
    x, weight, grad = torch.randn(2, 6, 5, 8), torch.randn(8, 1, 5, 5), torch.randn(2, 6, 5, 8)
    exact = results('cpp', x, weight, None, grad)
    leaves = x.requires_grad_(), weight.requires_grad_()
    found = []
    for backend in ('cpp', 'reference'):
        with torch.autocast('cpu', torch.bfloat16):  # of its own: that of torch 2.1 keeps weights without gradients
            out = depthwise_conv(*leaves, backend=backend)
        assert out.dtype == torch.bfloat16
        found.append(torch.autograd.grad(out.float().square().sum(), leaves))
    assert {x.dtype for x in found[0]} == {torch.float32} and max(differences(*found)) < 0.02
    out = depthwise_conv(*leaves, backend='cpp')
    with torch.autocast('cpu', torch.bfloat16):
        found = torch.autograd.grad(out, leaves, grad)
    assert all(x.equal(y) for x, y in zip(found, exact[1:]))


@pytest.mark.parametrize(
    'x, weight, words',
    [
        ((1, 4, 5, 9), (8, 1, 3, 3), r'x must be \(B, H, W, C\) and weight \(C, 1, k, k\), not \(1, 4, 5, 9\) and'),
        ((1, 4, 5, 8), (8, 1, 3, 5), 'filters of weight must be k x k with odd k, not 3 x 5'),
        ((1, 4, 5, 8), (8, 1, 2, 2), 'with odd k, not 2 x 2'),
        ((1, 4, 5, 8), (8, 1, 3, 3), r'bias must be \(8,\), not \(9,\)'),
    ],
    ids=['channels', 'sides', 'even', 'bias'],
)
def test_wrong_shapes(x, weight, words):
    with pytest.raises(ValueError, match=words):
        depthwise_conv(torch.ones(x), torch.ones(weight), torch.ones(9))


@needs_library
def test_what_the_code_does_not_take():
    x = torch.ones(1, 4, 5, 8)
    with pytest.raises(ValueError, match="filters of backend 'cpp' must have a side of 3, 5 or 7, not 9"):
        depthwise_conv(x, torch.ones(8, 1, 9, 9), backend='cpp')
    with pytest.raises(ValueError, match=r'grad and x must be \(B, H, W, C\), not \(1, 4, 4, 8\) and \(1, 4, 5, 8\)'):
        torch.ops.mmattn.depthwise_conv_weight_backward(x[:, :, 1:], x, 3)
    with pytest.raises(ValueError, match='takes float32 or bfloat16 tensors on one device'):
        torch.ops.mmattn.depthwise_conv_weight_backward(x, x.bfloat16(), 3)
