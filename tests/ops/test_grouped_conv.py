"""The C++ code of grouped convolutions: setup.py compiles it where mmattn is installed."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis import count_operations
from mmattn.analysis.complexity import operator_formulas
from mmattn.layers import ELSA
from mmattn.ops import grouped_conv as module
from mmattn.ops import library
from mmattn.ops.grouped_conv import grouped_conv
from mmattn.packages import version_numbers
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
@pytest.mark.parametrize('shape', [(1, 75, 131, 16), (7, 14, 14, 40), (3, 67, 64, 16), (2, 9, 4099, 8)])
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
    exact = results('reference', x, weight, bias, 1, grad, torch.float64)
    leaves = [x, weight.float(), bias.float()] if mixed else [x, weight, bias]
    leaves = [tensor.requires_grad_() for tensor in leaves]
    outs = []
    with torch.autocast('cpu', torch.bfloat16, enabled=mixed):
        for backend in ('reference', 'cpp'):
            outs.append(grouped_conv(*leaves, backend=backend))
    assert outs[1].equal(outs[0]) and outs[1].dtype == torch.bfloat16
    found = torch.autograd.grad(outs[1], leaves, grad)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in leaves]
    assert max(differences(found, exact[1:])) < 0.01


@needs_library
def test_no_images():
    """They have an empty result, and the filters have no gradient."""
    x, weight, bias = torch.randn(0, 3, 4, 8), torch.randn(8, 4, 3, 3), torch.randn(8)
    out, *gradients = results('cpp', x, weight, bias, 1, x)
    assert out.shape == gradients[0].shape == x.shape and not any(x.any() for x in gradients)


@needs_library
def test_when_it_is_chosen(monkeypatch):
    """The C++ code serves float32 and groups of 4 channels, and layers, too; of bfloat16, in training. Torch serves all
    else."""
    calls, layer = [], ELSA(12, 2, group_width=4)
    x, weight, bias = torch.randn(1, 4, 5, 48), torch.randn(48, 4, 3, 3), torch.randn(48)
    monkeypatch.setattr(module, 'call', lambda name, *others: (calls.append(name), library.call(name, *others)))
    grouped_conv(x, weight, bias)
    assert calls == ['grouped_conv']
    calls.clear()
    layer(torch.randn(1, 4, 5, 12))
    assert calls == ['grouped_conv']
    calls.clear()
    for width in (1, 2, 6, 8, 16):
        grouped_conv(x, torch.randn(48, width, 3, 3), bias)
    for dtype in (torch.float64, torch.bfloat16):
        grouped_conv(x.to(dtype), weight.to(dtype), bias.to(dtype))
    assert grouped_conv(*(tensor.to('meta') for tensor in (x, weight, bias))).is_meta
    torch.func.vmap(lambda x: grouped_conv(x, weight, bias))(x[None])
    with torch.autocast('cpu', torch.bfloat16):
        with torch.no_grad():
            layer(torch.randn(1, 4, 5, 12))
        assert not calls
        out = layer(torch.randn(1, 4, 5, 12))
        calls.clear()
        out.sum().backward()
    assert calls == ['grouped_conv_backward']
    calls.clear()
    monkeypatch.setattr(library, 'HAS_LIBRARY', False)
    grouped_conv(x, weight, bias)
    assert not calls


def test_layer_calls_it():
    """The filters and the bias of the layer of logits enter as in its own convolution, dilated, too."""
    layer, x = ELSA(12, 2, kernel_size=3, dilation=2, group_width=4), torch.randn(1, 9, 8, 8)
    expected = torch.nn.Conv2d.forward(layer.attn[0], x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer.attn[0](x), expected)


@pytest.mark.parametrize(
    'x, weight, bias, dilation, words',
    [
        ((4, 5, 8), (8, 4, 3, 3), None, 1, r'x must be \(B, H, W, C\) and weight \(C, width, k, k\), not \(4, 5, 8\)'),
        ((1, 4, 5, 9), (8, 4, 3, 3), None, 1, r'x must be .*, not \(1, 4, 5, 9\) and \(8, 4, 3, 3\)'),
        ((1, 4, 5, 8), (8, 4, 3, 5), None, 1, 'filters of weight must be k x k with odd k, not 3 x 5'),
        ((1, 4, 5, 8), (8, 4, 2, 2), None, 1, 'with odd k, not 2 x 2'),
        ((1, 4, 5, 8), (8, 3, 3, 3), None, 1, 'the 8 channels of x do not divide into groups of 3'),
        ((1, 0, 5, 8), (8, 4, 3, 3), None, 1, r'x must have no empty dimension but the first, not \(1, 0, 5, 8\)'),
        ((1, 4, 5, 8), (8, 0, 3, 3), None, 1, 'weight must have no empty dimension but the first'),
        ((1, 4, 5, 8), (8, 4, 3, 3), (9,), 1, r'bias must be \(8,\), not \(9,\)'),
        ((1, 4, 5, 8), (8, 4, 3, 3), (8,), 0, 'dilation must be a whole number of at least 1, not 0'),
    ],
)
def test_wrong_shapes(x, weight, bias, dilation, words):
    with pytest.raises(ValueError, match=words):
        grouped_conv(torch.ones(x), torch.ones(weight), None if bias is None else torch.ones(bias), dilation)


@needs_library
def test_what_the_code_does_not_take():
    x, weight = torch.ones(1, 4, 5, 12), torch.ones(12, 6, 3, 3)
    with pytest.raises(ValueError, match="groups of backend 'cpp' must have a multiple of 4 channels, not 6"):
        grouped_conv(x, weight, backend='cpp')
    with pytest.raises(ValueError, match="backend 'cpp' takes tensors of at most 32 bits"):
        grouped_conv(x.double(), weight.double(), backend='cpp')
    with pytest.raises(ValueError, match=r'grad must be as x, \(1, 4, 5, 12\), not \(1, 4, 4, 12\)'):
        torch.ops.mmattn.grouped_conv_backward(x[:, :, 1:], x, torch.ones(12, 4, 3, 3), 1)


@needs_library
@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_kept_in_graphs(monkeypatch):
    """A compiled graph calls the C++ code, forward and backward, and has the gradients of the reference. An exported
    one has torch's convolution."""
    called = []
    x, weight, bias, grad = torch.randn(1, 4, 5, 8), torch.randn(8, 4, 3, 3), torch.randn(8), torch.randn(1, 4, 5, 8)
    grouped_conv(x, weight, bias)  # checks the C++ code before calls are counted
    monkeypatch.setattr(module, 'call', lambda name, *others: (called.append(name), library.call(name, *others)))
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = torch.compile(grouped_conv, fullgraph=True, backend='aot_eager')(*inputs)
    found = [out, *torch.autograd.grad(out, inputs, grad)]
    assert called == ['grouped_conv', 'grouped_conv_backward']
    assert max(differences(found, results('reference', x, weight, bias, 1, grad))) < 3e-6
    exported = torch.export.export(ELSA(12, 2, group_width=4), (torch.randn(1, 4, 5, 12),))
    assert 'grouped_conv' not in str(exported.graph)


@needs_library
def test_operations_are_counted():
    """A count of operations is the same whichever path runs, forward and backward."""
    x, weight, bias = torch.randn(2, 4, 5, 8), torch.randn(8, 4, 3, 3), torch.randn(8)
    assert count_operations(partial(grouped_conv, x, weight, bias, backend='cpp')) == 2 * 4 * 5 * 8 * 4 * 9
    counts = []
    for backend in ('cpp', 'reference'):
        with FlopCounterMode(display=False, custom_mapping=operator_formulas()) as counter:
            results(backend, x, weight, bias, 1, x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 2 * 4 * 5 * 8 * 4 * 9
