"""The C++ code of grouped convolutions: setup.py compiles it where mmattn is installed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmattn.layers import ELSA
from mmattn.ops import library
from mmattn.ops.grouped_conv import fastest, grouped_conv
from tests.ops.measuring import differences, torch_threads

needs_library = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


def results(backend, x, weight, bias, dilation, grad, dtype=torch.float32, channels=slice(None)):
    """The output and the gradients of channels of x."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    out = grouped_conv(leaves[0][..., channels], *leaves[1:], *[None] * (3 - len(leaves)), dilation, backend)
    return [out, *torch.autograd.grad(out, leaves, grad.to(dtype))]


@needs_library
@given(
    B=st.integers(1, 3),
    H=st.integers(1, 19),
    W=st.integers(1, 37),
    width=st.sampled_from([4, 8, 12, 20]),
    groups=st.integers(1, 6),
    k=st.sampled_from([1, 3, 5, 7]),
    dilation=st.sampled_from([1, 1, 2, 5, 40]),
    has_bias=st.booleans(),
    threads=st.sampled_from([1, 2, 5]),
)
def test_code_is_the_reference(B, H, W, width, groups, k, dilation, has_bias, threads):
    """The output and all gradients are those of torch's convolution in float64, for any size, for maps smaller than the
    filters, with any number of threads, and for parts of a projection."""
    C = width * groups
    x, weight = torch.randn(B, H, W, C + 5), torch.randn(C, width, k, k)
    bias, grad = torch.randn(C) if has_bias else None, torch.randn(B, H, W, C)
    part = slice(2, -3)
    expected = results('reference', x, weight, bias, dilation, grad, torch.float64, part)
    with torch_threads(threads):
        found = results('cpp', x, weight, bias, dilation, grad, channels=part)
    assert found[0].is_contiguous()
    assert max(differences(found, expected)) < 3e-6


@needs_library
@pytest.mark.parametrize('shape', [(1, 75, 131, 16), (7, 14, 14, 40), (2, 9, 4099, 8)])
def test_large_maps(shape):
    """Maps of several blocks of rows, and blocks of several images; threads change roundings of sums only."""
    x, grad, weight, bias = *torch.randn(2, *shape), torch.randn(shape[3], 4, 7, 7), torch.randn(shape[3])
    expected = results('reference', x, weight, bias, 1, grad, torch.float64)
    found = []
    for threads in (1, 3):
        with torch_threads(threads):
            found.append(results('cpp', x, weight, bias, 1, grad))
    assert max(differences(found[0], expected)) < 3e-6
    assert all(x.equal(y) for x, y in zip(found[0][:2], found[1][:2]))
    assert max(differences(*found)) < 5e-7


@needs_library
@pytest.mark.parametrize('mixed', [False, True])
def test_gradients_of_bfloat16(mixed):
    """The output is torch's. Gradients are those of float64 but for the rounding of what they are made of, also with
    filters in float32 under autocast; each has the dtype of its tensor."""
    x, grad, weight, bias = torch.randn(2, 9, 7, 8), torch.randn(2, 9, 7, 8), torch.randn(8, 4, 3, 3), torch.randn(8)
    x, grad, weight, bias = (tensor.bfloat16() for tensor in (x, grad, weight, bias))
    exact = results('reference', x, weight, bias, 2, grad, torch.float64)
    leaves = [x, weight.float(), bias.float()] if mixed else [x, weight, bias]
    leaves = [tensor.requires_grad_() for tensor in leaves]
    outs = []
    with torch.autocast('cpu', torch.bfloat16, enabled=mixed):
        for backend in ('reference', 'cpp'):
            outs.append(grouped_conv(*leaves, dilation=2, backend=backend))
    assert outs[1].equal(outs[0]) and outs[1].dtype == torch.bfloat16
    found = torch.autograd.grad(outs[1], leaves, grad)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in leaves]
    assert max(differences(found, exact[1:])) < 0.01


@needs_library
def test_when_it_is_chosen():
    """For groups of 4 channels, in layers, too."""
    x, layer = torch.randn(1, 4, 5, 48), ELSA(12, 2, group_width=4)
    chosen = {width: fastest(x, torch.randn(48, width, 3, 3)) for width in (1, 2, 4, 6, 8, 16)}
    assert [width for width, backend in chosen.items() if backend == 'cpp'] == [4]
    assert fastest(torch.randn(1, 4, 5, 8), layer.attn[0].weight) == 'cpp'


def test_layer_calls_it():
    """The filters and the bias of the layer of logits enter as in its own convolution, dilated, too."""
    layer, x = ELSA(12, 2, kernel_size=3, dilation=2, group_width=4), torch.randn(1, 9, 8, 8)
    expected = torch.nn.Conv2d.forward(layer.attn[0], x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer.attn[0](x), expected)


@pytest.mark.parametrize(
    'x, weight, words',
    [
        ((1, 4, 5, 9), (8, 4, 3, 3), r'x must be \(B, H, W, C\) and weight \(C, width, k, k\), not \(1, 4, 5, 9\) and'),
        ((1, 4, 5, 8), (8, 4, 3, 5), 'filters of weight must be k x k with odd k, not 3 x 5'),
        ((1, 4, 5, 8), (8, 4, 2, 2), 'with odd k, not 2 x 2'),
        ((1, 4, 5, 8), (8, 3, 3, 3), 'the 8 channels of x do not divide into groups of 3'),
        ((1, 4, 5, 8), (8, 4, 3, 3), r'bias must be \(8,\), not \(9,\)'),
    ],
    ids=['channels', 'sides', 'even', 'groups', 'bias'],
)
def test_wrong_shapes(x, weight, words):
    with pytest.raises(ValueError, match=words):
        grouped_conv(torch.ones(x), torch.ones(weight), torch.ones(9))


@needs_library
def test_what_the_code_does_not_take():
    x, weight = torch.ones(1, 4, 5, 12), torch.ones(12, 6, 3, 3)
    with pytest.raises(ValueError, match="groups of backend 'cpp' must have a multiple of 4 channels, not 6"):
        grouped_conv(x, weight, backend='cpp')
    with pytest.raises(ValueError, match='dilation must be a whole number of at least 1, not 0'):
        grouped_conv(x, weight, dilation=0)
    with pytest.raises(ValueError, match=r'grad must be as x, \(1, 4, 5, 12\), not \(1, 4, 4, 12\)'):
        torch.ops.mmattn.grouped_conv_backward(x[:, :, 1:], x, torch.ones(12, 4, 3, 3), 1)
