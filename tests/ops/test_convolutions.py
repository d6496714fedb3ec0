"""Convolutions of groups of channels and of single channels, whose C++ code setup.py compiles where mmattn is
installed."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis.complexity import operator_formulas
from mmattn.layers import ELSA
from mmattn.ops import depthwise_conv as depthwise
from mmattn.ops import grouped_conv as grouped
from mmattn.ops import library
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.grouped_conv import grouped_conv
from tests.ops.measuring import differences, torch_threads
from tests.ops.operators import results

needs_library = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
both = pytest.mark.parametrize('operator, width', [(grouped_conv, 4), (depthwise_conv, 1)], ids=['grouped', 'own'])


def tensors_of(shape, width, k, dtype=torch.float32):
    """Input, filters, bias and the gradient of the result."""
    C = shape[-1]
    return [torch.randn(size).to(dtype) for size in (shape, (C, width, k, k), C, shape)]


def found_by(operator, backend, *tensors, dtype=None):
    *inputs, upstream = (x.to(dtype or x.dtype) for x in tensors)
    return results(operator, inputs, upstream, backend)


@needs_library
@both
@pytest.mark.parametrize('shape', [(1, 75, 67, 16), (9, 14, 14, 40), (2, 9, 4099, 8)], ids=['tiles', 'images', 'wide'])
def test_large_maps(operator, width, shape):
    """Maps of several tiles or blocks of rows, and tasks of several images, whose pixels have a mean: roundings do not
    add up. Threads change roundings of sums only, and those of depth-wise convolutions not even that."""
    x, weight, bias, upstream = tensors_of(shape, width, 5)
    inputs = x + 1, weight, bias, upstream + 1
    expected = found_by(operator, 'reference', *inputs, dtype=torch.float64)
    found = []
    for threads in (1, 3):
        with torch_threads(threads):
            found.append(found_by(operator, 'cpp', *inputs))
    assert max(differences(found[0], expected)) < 3e-6
    assert max(differences(*found)) < 5e-7
    same = slice(2, None) if width == 1 else slice(2)
    assert all(x.equal(y) for x, y in zip(*(each[same] for each in found)))
    assert width > 1 or max(differences(found[0][2:], expected[2:])) < 8e-7


@needs_library
@both
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision(operator, width, dtype):
    """Sums are in float32, and gradients are rounded once, to the dtype of the weights."""
    if (operator, dtype) == (grouped_conv, torch.float16):
        pytest.skip('it takes bfloat16 alone')
    inputs = tensors_of((4, 33, 40, 24), width, 3, dtype)
    found, expected = found_by(operator, 'cpp', *inputs), found_by(operator, 'reference', *inputs, dtype=torch.float64)
    assert {x.dtype for x in found} == {dtype}
    assert max(differences(found, expected)) < (4e-3 if dtype == torch.bfloat16 else 5e-4)


@needs_library
@both
def test_autocast(operator, width):
    """The result is in autocast's dtype, and the gradients of float32 weights are float32 and those of the reference. A
    backward pass inside of autocast, of a forward pass outside of it, stays in float32."""
    x, weight, bias, upstream = tensors_of((2, 6, 5, 8), width, 5)
    exact = found_by(operator, 'cpp', x, weight, bias, upstream)
    leaves = [x.requires_grad_() for x in (x, weight, bias)]
    half = [x.detach().bfloat16().requires_grad_() if width > 1 else x, weight, bias]  # as a layer before it gives it
    found = []
    for backend in ('cpp', 'reference'):
        with torch.autocast('cpu', torch.bfloat16):  # of its own: that of torch 2.1 keeps weights without gradients
            out = operator(*half, backend=backend)
        assert out.dtype == torch.bfloat16
        found.append(torch.autograd.grad(out.float().square().sum(), half))
    assert [x.dtype for x in found[0]] == [x.dtype for x in half] and max(differences(*found)) < 0.02
    out = operator(*leaves, backend='cpp')
    with torch.autocast('cpu', torch.bfloat16):
        found = torch.autograd.grad(out, leaves, upstream)
    assert all(x.equal(y) for x, y in zip(found, exact[1:]))


def test_autocast_leaves_float64():
    """With the sum and the GELU, too. Float32 becomes autocast's."""
    for dtype, found in ((torch.float64, torch.float64), (torch.float32, torch.bfloat16)):
        x, weight, bias, _ = tensors_of((1, 4, 5, 8), 1, 3, dtype)
        with torch.autocast('cpu', torch.bfloat16):
            assert depthwise_conv(x, weight, bias, skip=True, gelu=True).dtype == found


@needs_library
def test_when_grouped_is_chosen():
    """For groups of 4 channels, in layers, too; of bfloat16 in training, as the C++ code is for its gradients."""
    x, layer = torch.randn(1, 4, 5, 48), ELSA(12, 2, group_width=4)
    chosen = {width: grouped.fastest(x, torch.randn(48, width, 3, 3)) for width in (1, 2, 4, 6, 8, 16)}
    assert [width for width, backend in chosen.items() if backend == 'cpp'] == [4]
    assert grouped.fastest(torch.randn(1, 4, 5, 8), layer.attn[0].weight) == 'cpp'
    half = torch.randn(48, 4, 3, 3).bfloat16()
    assert grouped.fastest(x.bfloat16(), half) == 'reference'
    assert grouped.fastest(x.bfloat16(), half.requires_grad_()) == 'cpp'


@needs_library
def test_when_depthwise_is_chosen():
    """The C++ code serves where filters or biases need gradients and it is faster: not for k = 3 in float32."""
    x, weight, bias, _ = tensors_of((1, 4, 5, 8), 1, 5)
    assert depthwise.fastest(x, weight.requires_grad_(), None) == 'cpp'
    assert depthwise.fastest(x, weight.detach(), bias.requires_grad_()) == 'cpp'
    small, large = (torch.randn(8, 1, k, k).requires_grad_() for k in (3, 9))
    assert depthwise.fastest(x.bfloat16(), small.bfloat16(), None) == 'cpp'
    assert {depthwise.fastest(x, each, None) for each in (small, large, weight.detach())} == {'reference'}


@needs_library
def test_only_what_is_needed():
    """Nothing is computed for what needs no gradient: a pass has the operations of two convolutions."""
    for needed in (0, 1):
        inputs = [x.requires_grad_(i == needed) for i, x in enumerate(tensors_of((1, 4, 5, 8), 1, 5)[:2])]
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            depthwise_conv(*inputs, backend='cpp').sum().backward()
        assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 8 * 25


def test_layer_calls_it():
    """The filters and the bias of the layer of logits enter as in its own convolution, dilated, too."""
    layer, x = ELSA(12, 2, kernel_size=3, dilation=2, group_width=4), torch.randn(1, 9, 8, 8)
    expected = torch.nn.Conv2d.forward(layer.attn[0], x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer.attn[0](x), expected)


@needs_library
def test_what_the_code_does_not_take():
    x = torch.ones(1, 4, 5, 12)
    with pytest.raises(ValueError, match="groups of backend 'cpp' must have a multiple of 4 channels, not 6"):
        grouped_conv(x, torch.ones(12, 6, 3, 3), backend='cpp')
    with pytest.raises(ValueError, match="filters of backend 'cpp' must have a side of 3, 5 or 7, not 9"):
        depthwise_conv(x, torch.ones(12, 1, 9, 9), backend='cpp')
    for name, message, arguments in (
        ('grouped_conv_backward', 'grad must be as x', (torch.ones(12, 4, 3, 3), 1)),
        ('depthwise_conv_weight_backward', 'grad and x must be', (3,)),
    ):
        with pytest.raises(ValueError, match=rf'{message}.* \(1, 4, 4, 12\)'):
            getattr(torch.ops.mmattn, name)(x[:, :, 1:], x, *arguments)
