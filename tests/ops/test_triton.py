"""The GPU kernels: on a GPU, or on the CPU under Triton's interpreter (see tests/__init__.py)."""

import copy
import json
import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.errors import InputError
from mmattn.layers import ELSA, AggregatedAttention, GlobalSelfAttention, MeanShiftAttention
from mmattn.layers import global_self_attention as gsa_layer
from mmattn.ops import (
    aggregated_attention,
    axial_attention,
    content_attention,
    elsa_attention,
    mean_shift_attention,
    neighbourhood_attention,
)
from mmattn.ops import batch_norm as norm_operator
from mmattn.ops import elsa as elsa_operator
from mmattn.ops import global_self_attention as axial_operator
from mmattn.ops import mean_shift as mean_shift_operator
from mmattn.ops.depthwise_conv import depthwise_conv
from mmattn.ops.global_self_attention import projected_attention
from tests import ROOT
from tests.ops.operators import (
    aggregated,
    axial,
    batch_norm,
    convolution,
    elsa,
    gelu,
    layer_norm,
    mean_shift,
    neighbourhood,
    pooled,
    projected,
    results,
    windows,
)

triton = pytest.importorskip('triton')
of_aggregated = pytest.importorskip('mmattn.ops.aggregated_attention.triton', exc_type=ImportError)
aggregated_operator = import_module('mmattn.ops.aggregated_attention')
of_norm = pytest.importorskip('mmattn.ops.batch_norm.triton', exc_type=ImportError)
of_gelu = pytest.importorskip('mmattn.ops.gelu.triton', exc_type=ImportError)
of_layer_norm = pytest.importorskip('mmattn.ops.layer_norm.triton', exc_type=ImportError)
of_depthwise = pytest.importorskip('mmattn.ops.depthwise_conv.triton', exc_type=ImportError)
of_elsa = pytest.importorskip('mmattn.ops.elsa.triton', exc_type=ImportError)
of_axial = pytest.importorskip('mmattn.ops.global_self_attention.triton', exc_type=ImportError)
of_maps = pytest.importorskip('mmattn.ops.triton_maps', exc_type=ImportError)
of_mean_shift = pytest.importorskip('mmattn.ops.mean_shift.triton', exc_type=ImportError)
of_content = pytest.importorskip('mmattn.ops.global_self_attention.triton_content', exc_type=ImportError)
of_neighbourhood = pytest.importorskip('mmattn.ops.neighbourhood.triton', exc_type=ImportError)
of_windows = pytest.importorskip('mmattn.ops.window_attention.triton', exc_type=ImportError)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'
SINGLE, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16
GHOST, BIAS = ('ghost_add',), ('bias',)
interpreted = pytest.mark.skipif(DEVICE == 'cuda', reason='on a GPU, kernels with products take 16 bits only')


@pytest.fixture
def several_programs(monkeypatch):
    """Small maps have several tiles, lines several blocks, and sums several parts."""
    for module, values in (
        (of_aggregated, dict(TILES=((16, 16),) * 5, PROGRAMS=12)),
        (of_elsa, dict(MAP_BYTES=512, CHUNK=16)),
        (of_axial, dict(PROGRAMS=3)),
        (of_maps, dict(SIDE=4, CHANNELS=4, NUMBERS=8)),
        (of_mean_shift, dict(TILES=((16, 16),) * 3)),
        (of_content, dict(PIXELS=32, BLOCK=16)),
        (of_depthwise, dict(SIDE=4, CHANNELS=4, STEPS=2, PARTS=2)),
        (of_gelu, dict(CHANNELS=4, NUMBERS=16, PROGRAMS=6)),
        (of_layer_norm, dict(NUMBERS=32, PROGRAMS=3)),
        (of_norm, dict(CHANNELS=4, NUMBERS=16, PROGRAMS=8, PARTS=2)),
        (of_neighbourhood, dict(BLOCK_SIZE=128)),
        (of_windows, dict(FORWARD=2, BACKWARD=2, LOGITS=256)),
    ):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


def depthwise(*arguments, **settings):
    return convolution(depthwise_conv, *arguments, **settings)


def content(size, heads, k, v):
    return content_attention, dict(query=(*size, heads, k), key=(*size, heads, k), value=(*size, heads, v))


def axial_and_content(size, heads, k, v, L, dim):
    shapes = axial(size, heads, k, v, L, dim)[1] | dict(context=(size[0], heads, k, v))

    def call(query, value, table, context, backend=None):
        return axial_attention(query, value, table, dim, backend=backend, context=context)

    return call, shapes


def gsa(size, heads, d, columns, rows, beyond='mask'):
    """From the projections on, with tables of these lengths."""
    shapes = dict(maps=(*size, 3, heads, d), columns=(2 * columns - 1, d), rows=(2 * rows - 1, d))
    call = lambda *tensors, backend: projected_attention(*tensors, beyond=beyond, backend=backend)
    return call, shapes | dict.fromkeys(('weight', 'bias'), (heads * d,))


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.usefixtures('triton_runs', 'several_programs')
@pytest.mark.parametrize(
    'operator, dtype, wide',
    [
        (elsa((1, 3, 9), 2, 4, 3, 2), SINGLE, True),
        pytest.param(axial((2, 17, 9), 1, 4, 4, 4, 1), SINGLE, False, marks=interpreted),
        (axial((1, 1, 18), 2, 3, 5, 9, 2, 'stretch'), HALF, False),
        (neighbourhood((1, 2, 9), 2, 6, 3), SINGLE, False),  # rows are continued
        (neighbourhood((1, 2, 9), 2, 6, 3), BFLOAT, False),
        pytest.param(axial_and_content((2, 2, 17), 3, 17, 5, 4, 2), SINGLE, False, marks=interpreted),
        pytest.param(content((2, 5, 7), 2, 4, 5), SINGLE, False, marks=interpreted),
        pytest.param(gsa((2, 5, 18), 2, 3, 5, 4), SINGLE, False, marks=interpreted),
        slow(gsa((2, 17, 5), 1, 17, 5, 3, 'stretch'), BFLOAT, False),
        slow(gsa((1, 3, 34), 3, 16, 2, 40), HALF, False),
        (depthwise((1, 9, 6), 5, 1, 3, skip=True, gelu=True), SINGLE, False),
        pytest.param(mean_shift(1, 2, 17, 33, 5), SINGLE, False, marks=interpreted),
        pytest.param(aggregated((2, 5, 7), 2, 5, 3, 3, 6), SINGLE, False, marks=interpreted),
        (aggregated((1, 4, 5), 3, 24, 3, 2, 2), BFLOAT, False),
        slow(aggregated((3, 6, 5), 2, 8, 5, 3, 3), HALF, False),
        slow(aggregated((1, 1, 1), 1, 2, 3, 1, 2), BFLOAT, False),
        slow(aggregated((1, 3, 7), 2, 33, 3, 1, 17), BFLOAT, False),
        (projected(2, 2, 20, 16), BFLOAT, False),
        slow(projected(1, 3, 33, 24, parts=3), HALF, False),
        slow(mean_shift(2, 2, 20, 7, 16, probe=False), BFLOAT, False),
        slow(mean_shift(1, 1, 1, 1, 1), HALF, False),
        (batch_norm((2, 3, 5), 6), SINGLE, False),
        (batch_norm((1, 5, 3), 3, 'shortcut'), BFLOAT, False),
        slow(batch_norm((2, 7, 9), 5, 'shortcut'), HALF, False),
        slow(batch_norm((1, 1, 2), 1), BFLOAT, False),
        (pooled((2, 3, 6), 5), BFLOAT, False),
        slow(pooled((1, 7, 5), 4), SINGLE, False),
        slow(pooled((3, 1, 2), 9), HALF, False),
        (gelu((2, 3, 5), 6, 4), SINGLE, False),
        (gelu((1, 5, 3), 5, 3), BFLOAT, False),
        slow(gelu((2, 7, 9), 4, 5), HALF, False),
        (layer_norm((2, 3, 5), 6), SINGLE, False),
        (layer_norm((2, 5, 3), 8), BFLOAT, False),
        (layer_norm((1, 4, 3), 5, summed=False), BFLOAT, False),
        slow(layer_norm((3, 2, 3), 5, normed=False), BFLOAT, False),
        slow(layer_norm((3, 7, 9), 33), HALF, False),
        pytest.param(windows((2, 4, 3), 1, 6, 3, 2, 4, padded=True), SINGLE, False, marks=interpreted),
        (windows((1, 4, 6), 1, 4, 5, 2, 3), BFLOAT, False),  # windows are worked on in parts
        slow(windows((1, 3, 8), 1, 8, 4, 3, 4, padded=True, shift_small_maps=False), HALF, False),
        slow(windows((1, 8, 11), 2, 32, 7, 3, 3, padded=True), BFLOAT, False),
        slow(windows((1, 9, 12), 1, 16, 12, 6, 4, padded=True), HALF, False),
        (depthwise((1, 9, 6), 5, 1, 3, gelu=True, gated=True), BFLOAT, False),
        slow(depthwise((2, 3, 9), 4, 1, 3, False, skip=True, gated=True), SINGLE, False),
        slow(depthwise((1, 1, 1), 3, 1, 3, False, skip=True), BFLOAT, False),
        slow(depthwise((1, 3, 17), 9, 1, 5, gelu=True), HALF, False),
        slow(depthwise((2, 5, 8), 4, 1, 3, False), SINGLE, False),
        slow(elsa((1, 3, 9), 2, 4, 1, 1, ()), SINGLE, True),
        slow(elsa((2, 2, 9), 2, 6, 3, 1, GHOST), SINGLE, False),
        slow(elsa((1, 3, 9), 2, 5, 3, 3, ('ghost_mul',)), HALF, True),
        slow(elsa((1, 3, 9), 2, 8, 5, 2), BFLOAT, False),
        slow(elsa((2, 5, 9), 2, 8, 3), SINGLE, False),
        slow(elsa((2, 9, 16), 2, 32, 7), SINGLE, False),
        slow(elsa((2, 9, 16), 2, 32, 7, 1, GHOST), BFLOAT, True),
        slow(elsa((1, 14, 17), 2, 5, 7, 2), SINGLE, False),
        slow(axial((1, 17, 1), 1, 17, 16, 30, 1, 'stretch'), BFLOAT, False),
        slow(axial((2, 5, 33), 3, 16, 16, 5, 2), HALF, False),
        slow(axial((1, 40, 3), 8, 32, 32, 33, 1), BFLOAT, False),
        slow(axial((1, 2, 4), 8, 64, 64, 9, 2), BFLOAT, False),
        slow(axial_and_content((1, 17, 3), 8, 64, 64, 9, 1), BFLOAT, False),
        slow(content((1, 2, 5), 2, 16, 16), HALF, False),
        slow(content((2, 5, 9), 1, 33, 64), BFLOAT, False),
        slow(neighbourhood((1, 7, 5), 2, 4, 3, 2, ('beyond',)), SINGLE, False),
        slow(neighbourhood((2, 9, 12), 2, 16, 5, 1, BIAS), HALF, False),
        slow(neighbourhood((1, 7, 22), 1, 4, 7, 1, BIAS), HALF, False),  # 17 columns of queries attend to a tile
        slow(neighbourhood((1, 14, 15), 1, 4, 13, 1, BIAS), HALF, False),
        slow(neighbourhood((1, 11, 17), 2, 8, 5, 2, ()), BFLOAT, False),
        slow(neighbourhood((1, 3, 9), 1, 65, 3), HALF, False),  # pixel by pixel, as float32
        slow(neighbourhood((1, 17, 3), 1, 8, 17), BFLOAT, False),
        slow(neighbourhood((1, 8, 15), 2, 8, 3, 3), SINGLE, False),
        slow(neighbourhood((2, 9, 16), 2, 32, 7, 1, BIAS), SINGLE, False),
        slow(neighbourhood((1, 15, 16), 2, 32, 7, 2, BIAS), BFLOAT, False),
    ],
)
def test_kernels_are_the_reference(monkeypatch, operator, dtype, wide):
    """The output and all gradients are those of the reference in float64, also of parts of a projection and of maps
    that are smaller than the neighbourhood. ELSA's logits are tap-major; where indices have 64 bits (wide),
    pixel-major."""
    call, shapes = operator
    if wide:
        monkeypatch.setattr(of_elsa, 'WIDE', 0)
    tensors = []
    for name, shape in shapes.items():
        x = torch.randn(shape).to(dtype)
        if name == 'logits' and not wide:
            x = x.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)
        elif name in ('value', 'x'):
            x = torch.cat([x, x], -1)[..., x.shape[-1] :]
        tensors.append(x)
    exact = [x.double() for x in tensors]
    upstream = torch.randn_like(call(*exact, backend='reference'))
    expected = results(call, exact, upstream, 'reference')
    found = results(call, [x.to(DEVICE) for x in tensors], upstream, 'triton')
    for actual, wanted in zip(found, expected):
        assert actual.dtype == dtype
        assert (actual.double().cpu() - wanted).abs().max() <= 40 * torch.finfo(dtype).eps * wanted.abs().max()


@pytest.mark.usefixtures('triton_runs')
def test_large_logits():
    """Exponentials do not overflow, and weights far below the largest one are zero."""
    value = torch.randn(1, 2, 5, 8, device=DEVICE)
    logits = 300 * torch.randn(1, 2, 5, 2, 9, device=DEVICE)
    expected = elsa_attention(logits, value, backend='reference')
    out = elsa_attention(logits, value, backend='triton')
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)  # a logit of 1000 has the precision 6e-5


@pytest.mark.usefixtures('triton_runs')
def test_large_keys():
    """Key norms far above the largest number of float16 do not overflow."""
    tensors = [(size * torch.randn(1, 2, 20, 64)).half().to(DEVICE) for size in (1e3, 1e3, 1)]
    out, *gradients = results(mean_shift_attention, tensors, torch.ones(1, 2, 20, 64), 'triton')
    expected = mean_shift_attention(*(x.double() for x in tensors), backend='reference')
    assert all(x.isfinite().all() for x in gradients)
    torch.testing.assert_close(out.double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.usefixtures('triton_runs')
def test_large_probes():
    """The other gradients do not depend on the probe, and not on the digits that a large one leaves of the result. The
    result does not depend on whether there are gradients."""
    tokens = torch.randn(3, 1, 2, 20, 8).to(DEVICE, BFLOAT)
    found = [
        results(mean_shift_attention, [*tokens, size * tokens[0]], torch.ones(1, 2, 20, 8), 'triton')
        for size in (1, 1000)
    ]
    assert all(map(torch.equal, found[0][1:], found[1][1:]))
    assert torch.equal(mean_shift_attention(*tokens, tokens[0], backend='triton'), found[0][0])


@pytest.mark.usefixtures('triton_runs', 'several_programs')
@pytest.mark.parametrize('size, dtype', [(1e3, SINGLE), (1e3, HALF), (1e-4, SINGLE)], ids=str)
def test_axial_kernels_and_the_range_of_float16(size, dtype):
    """In float16, scores and results may be too large for it, and an image that is far smaller than another one in the
    same tile of lines is as exact. The gradient of the table has the share of both."""
    query, value, upstream = torch.randn(3, 2, 17, 2, 1, 4)
    scales = torch.tensor([2.0**13, 2.0**-6]).view(2, 1, 1, 1, 1)  # A norm that follows has the inverse in gradients.
    query, value, upstream = (scales * query).to(HALF), (size * value).to(dtype), upstream / scales / size
    table, context = 8 * torch.randn(9, 4).to(HALF), 4 * size * torch.randn(2, 1, 4, 4)
    found, expected = [], []
    for results_of, backend, of in ((found, 'triton', SINGLE), (expected, 'reference', torch.float64)):
        tensors = [query, value, table, context]
        tensors = tensors if backend == 'triton' else [x.double() for x in tensors]

        def call(query, value, table, context, backend, of=of):
            return axial_attention(query, value, table, 1, backend=backend, context=context, dtype=of)

        results_of += results(call, [x.to(DEVICE) for x in tensors], upstream.to(DEVICE), backend)
    assert [x.dtype for x in found] == [SINGLE, HALF, dtype, HALF, SINGLE]
    assert size < 1 or found[0].abs().max() > torch.finfo(HALF).max
    for name, x, y in zip('result query value table context'.split(), found, expected):
        for one, other in [(x, y)] if name == 'table' else zip(x, y):  # of each image
            error = (one.double() - other).norm() / other.norm()
            assert error < torch.finfo(HALF).eps, (name, error.item())


@pytest.mark.usefixtures('triton_runs')
@interpreted
@pytest.mark.skipif(not hasattr(torch.amp, 'GradScaler'), reason='this torch has no float16 convolutions on the CPU')
@pytest.mark.parametrize('settings', [{}, dict(softmax_queries=True)], ids=str)
@pytest.mark.parametrize('serves', [True, False], ids=['one function', 'torch norms'])
def test_global_self_attention_in_float16(monkeypatch, settings, serves):
    """Under autocast, maps and gradients are near those of float64 and finite, although float16 would overflow between
    columns and rows: the kernels give float32. So it is if torch computes the norm."""
    monkeypatch.setattr(norm_operator, 'triton_takes', lambda x: serves)
    layer = GlobalSelfAttention(8, 2, stride=32, project=False, **settings)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    torch.nn.init.normal_(layer.key.weight, std=1e-3)  # so that the softmax of the keys has a gradient
    layer.backend, exact = 'triton', copy.deepcopy(layer).double()
    exact.backend = 'reference'
    x, found = 300 * torch.randn(2, 3, 4, 8), []
    for each, image in ((layer, x), (exact, x.double())):
        with torch.autocast('cpu', HALF, enabled=each is layer):
            with torch.no_grad():
                inference = each.eval()(image)
            out = each.train()(image)
        loss = (out / out.detach().square().mean().sqrt()).square().sum()  # through a norm, as in a network
        gradients = torch.autograd.grad(loss, list(each.parameters()))
        found.append([inference, out, *gradients])
    assert found[0][0].dtype == SINGLE and found[0][0].abs().max() > torch.finfo(HALF).max
    for one, other in zip(*found):
        assert (one.double() - other).norm() <= 10 * torch.finfo(HALF).eps * other.norm()


@pytest.mark.usefixtures('triton_runs')
@interpreted
@pytest.mark.parametrize('training', [True, False], ids=['training', 'frozen statistics'])
def test_a_training_step_of_global_self_attention(monkeypatch, training):
    """What follows the projections is one function of autograd. The result, all gradients and running statistics are
    those of the reference. Another norm, whose hooks must fire, is called."""
    monkeypatch.setattr(norm_operator, 'triton_takes', lambda x: True)
    layer = GlobalSelfAttention(6, 2, stride=32, project=False)
    for x in (*layer.parameters(), layer.bn.running_mean, layer.bn.running_var):
        torch.nn.init.uniform_(x, 0.5, 1.5)
    exact, image, found = copy.deepcopy(layer), torch.randn(2, 4, 5, 6), []
    for each, backend in ((layer, 'triton'), (exact, 'reference')):
        each.backend, x = backend, image.clone().requires_grad_()
        out = each.train(training)(x)
        gradients = torch.autograd.grad(out.square().sum(), [x, *each.parameters()])
        found.append((out, gradients, each.state_dict()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    name = lambda: type(layer(image).grad_fn.next_functions[0][0]).__name__
    assert name() == '_ProjectedBackward'
    seen = []
    layer.bn.register_forward_hook(lambda *_: seen.append(1))
    assert name() != '_ProjectedBackward' and seen


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize('of', ['elsa', 'neighbourhood'])
def test_a_single_image_in_another_layout(of):
    """Of one image, maps can be seen as rows of pixels without a copy, also if channels are not neighbours."""
    maps = torch.randn(3, 1, 8, 2, 5, device=DEVICE).permute(0, 1, 3, 4, 2)
    results = []
    for backend in ('reference', 'triton'):
        if of == 'elsa':
            logits = maps.new_ones(1, 2, 5, 2, 9).cumsum(-1)
            results.append(elsa_attention(logits, maps[0], backend=backend))
        else:
            results.append(neighbourhood_attention(*maps.unflatten(-1, (2, 4)), None, 3, 1, backend=backend))
    torch.testing.assert_close(*results)


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize('dtype', [SINGLE, BFLOAT])
def test_query_key_and_value_as_one(dtype):
    """One projection makes them, and no copy: results and gradients are those of the three parts."""
    maps = torch.randn(1, 3, 4, 3, 2, 5, device=DEVICE).to(dtype).requires_grad_()
    bias = torch.randn(2, 5, 5, device=DEVICE)
    expected = neighbourhood_attention(*maps.unbind(3), bias, 3, backend='triton')
    found = neighbourhood_attention(maps, None, None, bias, 3, backend='triton')
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    gradients = [torch.autograd.grad(out.square().sum(), maps)[0] for out in (found, expected)]
    torch.testing.assert_close(*gradients, atol=0, rtol=0)


@pytest.mark.usefixtures('triton_runs')
def test_parts_of_wider_maps():
    """Pixels that are further apart, as in the projection of several layers at once, are read where they are."""
    call, shapes = aggregated((2, 3, 4), 2, 5, 3, 1, 2)
    tensors = [torch.randn(shape, device=DEVICE).to(BFLOAT) for shape in shapes.values()]
    wider = [torch.stack((x, x), 3)[:, :, :, 1] for x in tensors[:3]]
    assert [x.stride(2) for x in wider] == [2 * x.stride(2) for x in tensors[:3]]
    upstream = torch.randn_like(tensors[0])
    found = [results(call, given, upstream, 'triton') for given in (tensors, [*wider, *tensors[3:]])]
    assert all(map(torch.equal, *found))


@pytest.mark.usefixtures('triton_runs')
def test_gradient_of_logits_has_their_strides():
    """Otherwise the layer's product would copy it. Logits that share memory get a gradient of their own each."""
    value = torch.randn(1, 2, 5, 8, device=DEVICE)
    tap_major = torch.randn(1, 2, 9, 2, 5, device=DEVICE).permute(0, 3, 4, 1, 2)
    repeated = torch.randn(1, 1, 5, 2, 9, device=DEVICE).expand(1, 2, 5, 2, 9)
    for logits in (tap_major, repeated):
        gradients = []
        for backend in ('reference', 'triton'):
            logits = logits.detach().requires_grad_()
            out = elsa_attention(logits, value, backend=backend)
            gradients += torch.autograd.grad(out.square().sum(), logits)
        torch.testing.assert_close(*gradients)
        if logits.stride(1):
            assert gradients[1].stride() == logits.stride()


@pytest.mark.usefixtures('triton_runs')
def test_layer_makes_tap_major_logits():
    """The layer gives the kernels logits of neighbouring pixels side by side, and the same output as without."""
    layer = ELSA(12, 2, kernel_size=3, group_width=4).to(DEVICE)
    x = torch.randn(1, 2, 5, 12, device=DEVICE)
    product = torch.randn(1, 2, 5, layer.dim_qk, device=DEVICE, requires_grad=True)
    logits = layer._logits(product, tap_major=True)
    torch.testing.assert_close(logits, layer._logits(product))
    assert logits.stride()[1:] == (5, 1, 9 * 10, 10)
    outputs = []
    for layer.backend in ('reference', 'triton'):
        outputs.append(layer(x))
    torch.testing.assert_close(*outputs)


@pytest.mark.usefixtures('triton_runs')
@interpreted
@pytest.mark.parametrize('settings', [{}, dict(softmax_queries=True), dict(row=False), dict(column=False)], ids=str)
def test_global_self_attention_takes_the_kernels(settings):
    """With them, results and gradients are the same: in training, where the backward pass computes keys and context
    again, and in inference, where the columns' kernel applies the norm."""
    first, found = GlobalSelfAttention(8, 2, stride=32, **settings), []
    for parameter in first.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 4, 8)
    for backend in (None, 'triton'):
        layer = copy.deepcopy(first)
        layer.backend = backend
        out = layer.train()(x)
        gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
        with torch.no_grad():
            found.append((out, *gradients, layer.eval()(x)))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures('triton_runs')
@interpreted
def test_hooks_of_fused_layers(monkeypatch):
    """In inference, query, key and value are one product, and the norm belongs to attention. Modules with hooks are
    called."""
    layer, x, called = GlobalSelfAttention(8, 2, stride=32).eval(), torch.randn(1, 3, 4, 8), []
    parts = [layer.query, layer.key, layer.value, layer.bn]
    with torch.no_grad():
        expected = layer(x)
        monkeypatch.setattr(gsa_layer, 'is_half', lambda x: True)
        layer.backend = 'triton'
        torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
        for module in parts:
            module.register_forward_hook(lambda module, *_: called.append(module))
        torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)
    assert called == [layer.query, layer.value, layer.key, layer.bn]


@pytest.mark.usefixtures('triton_runs')
@interpreted
def test_keys_in_another_layout():
    """Keys of which pixels are neighbours in memory are read where they are."""
    query, key, value = torch.randn(3, 1, 3, 4, 2, 5)
    expected = content_attention(query, key, value, 'reference')
    moved = key.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)
    assert moved.stride(-2) == 60 and moved.stride(2) == 1
    torch.testing.assert_close(content_attention(query, moved, value, 'triton'), expected)


@pytest.mark.usefixtures('triton_runs')
@interpreted
def test_aggregated_attention_takes_the_kernels():
    """The layer's result and gradients are the same, also where queries and keys are zero."""
    layer, x, found = AggregatedAttention(8, 2, 2, kernel_size=5), torch.randn(2, 3, 5, 8), []
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x[0, 1, 2] = 0
    for projection in (layer.q, layer.kv):
        torch.nn.init.zeros_(projection.bias)
    for layer.backend in ('shifted', 'triton'):
        out = layer(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), layer.parameters())])
    for expected, actual in zip(*found, strict=True):
        assert (actual - expected).abs().max() <= 3e-5 * expected.abs().max()


@interpreted
@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'arguments',
    [
        {},
        dict(form='gauss'),
        dict(form='residual'),
        dict(sharing='QKKQW'),
        dict(rope=9.0),
        dict(steps=2),
        dict(landmarks=2),
    ],
    ids=str,
)
def test_mean_shift_layer_takes_the_kernels(arguments):
    """With prefix tokens, of one projection or of its parts, and where there are fewer queries than keys, and more."""
    layer = MeanShiftAttention(8, 2, **arguments).to(DEVICE)
    x, prefix = torch.randn(2, 3, 4, 8, device=DEVICE), torch.randn(2, 2, 8, device=DEVICE)
    found = []
    for backend, at_once in (('channels', False), ('triton', layer.is_one_operator)):
        layer.backend, layer.is_one_operator = backend, at_once
        out = torch.cat([each.flatten(1, -2) for each in layer(x, prefix)], 1)
        found.append([out, *torch.autograd.grad(out.square().sum(), layer.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'operator',
    [
        elsa((1, 1, 1), 1, 1, 1, 1, ()),
        axial((1, 1, 1), 1, 1, 1, 1, 1),
        depthwise((1, 1, 1), 1, 1, 1),
        mean_shift(1, 1, 1, 1, 1),
        windows((1, 1, 1), 1, 1, 1, 0, 3),
    ],
)
def test_kernels_have_no_second_derivatives(operator):
    call, shapes = operator
    inputs = [torch.ones(shape, device=DEVICE, dtype=HALF, requires_grad=True) for shape in shapes.values()]
    out = call(*inputs, backend='triton')
    with pytest.raises(InputError, match='second derivatives'):
        torch.autograd.grad(torch.autograd.grad(out.sum(), inputs, create_graph=True)[0].sum(), inputs)


def test_what_kernels_do_not_take(monkeypatch):
    """Dropout, wide heads, and tensors that are not on a GPU."""
    for d, dropout_p in ((4, 0.1), (65, 0.0)):
        _, shapes = aggregated((1, 2, 2), 1, d, 3, 1, 1)
        tensors = {name: torch.zeros(shape, dtype=HALF, device=DEVICE) for name, shape in shapes.items()}
        with pytest.raises(ValueError, match='heads of at most 64 channels and no dropout: choose'):
            aggregated_attention(**tensors, dropout_p=dropout_p, backend='triton')
    with pytest.raises(ValueError, match="backend 'triton' needs dropout_p=0, not 0.1: choose backend 'shifted'"):
        of_elsa.elsa_attention_triton(torch.randn(1, 2, 2, 1, 9), torch.randn(1, 2, 2, 4), dropout_p=0.1)
    for d, others in ((4, dict(dropout_p=0.1)), (65, {})):
        x = torch.zeros(1, 2, 2, d, dtype=HALF, device=DEVICE)
        with pytest.raises(ValueError, match='takes neither a bias nor dropout, and heads of at most 64 channels'):
            mean_shift_attention(x, x, x, **others, backend='triton')
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    x = torch.zeros(1, 2, 2, 1, 4)
    with pytest.raises(ValueError, match='needs tensors on a GPU, not on cpu'):
        axial_attention(x, x, torch.zeros(3, 4), 1, backend='triton')


@pytest.mark.usefixtures('triton_runs')
def test_axial_kernels_take_narrow_heads():
    """None chooses them for what they take alone: 16 bits, and few channels, which must fit shared memory."""
    x = SimpleNamespace(is_cuda=True, dtype=BFLOAT, device=torch.device('cuda'), shape=(1, 2, 2, 1, 64))
    assert axial_operator.fastest(x, x, positional=True) == 'triton'
    wide = SimpleNamespace(**{**vars(x), 'shape': (1, 2, 2, 1, 65)})
    single = SimpleNamespace(**{**vars(x), 'dtype': SINGLE})
    for query, value, positional in ((x, x, False), (wide, x, True), (x, wide, True), (single, single, True)):
        assert axial_operator.fastest(query, value, positional) == 'batched'
    wide = torch.zeros(1, 2, 2, 1, 65, device=DEVICE, dtype=HALF)
    with pytest.raises(ValueError, match="'triton' takes at most 64 channels of a head, not 65"):
        axial_attention(wide, wide, torch.zeros(3, 65, device=DEVICE), 1, backend='triton')


@pytest.mark.parametrize(
    'is_cuda, dtype, dropout_p, chosen',
    [
        (True, BFLOAT, 0.0, True),
        (True, BFLOAT, 0.1, False),
        (True, torch.float64, 0.0, False),
        (False, SINGLE, 0.0, False),
    ],
    ids=['half', 'dropout', 'double', 'cpu'],
)
def test_kernels_are_chosen(monkeypatch, is_cuda, dtype, dropout_p, chosen):
    """The kernels are the default on a GPU. Float64 does not use them, because their sums are in float32, and dropout
    does not, because they make the weights themselves."""
    value = SimpleNamespace(is_cuda=is_cuda, dtype=dtype, device=torch.device('cuda'))
    monkeypatch.setattr(elsa_operator.library, 'takes', lambda *_, **__: False)
    assert elsa_operator.fastest(value, value, dropout_p) == ('triton' if chosen else 'shifted')


@pytest.mark.parametrize(
    'd, biased, dropout_p, chosen',
    [
        (64, False, 0.0, 'triton'),
        (65, False, 0.0, 'channels'),
        (64, True, 0.0, 'channels'),
        (64, False, 0.1, 'channels'),
    ],
    ids=['taken', 'wide', 'bias', 'dropout'],
)
def test_mean_shift_kernels_are_chosen(monkeypatch, d, biased, dropout_p, chosen):
    """On a GPU in half precision, for what they take."""
    monkeypatch.setattr(mean_shift_operator, 'triton_multiplies', lambda _: True)
    key = torch.zeros(1, 1, 2, d, dtype=BFLOAT)
    assert mean_shift_operator.fastest(key, key if biased else None, dropout_p) == chosen


@pytest.mark.parametrize(
    'd, dropout_p, other, chosen',
    [
        (64, 0.0, BFLOAT, 'triton'),
        (65, 0.0, BFLOAT, 'shifted'),
        (64, 0.1, BFLOAT, 'shifted'),
        (64, 0.0, SINGLE, 'shifted'),
    ],
    ids=['taken', 'wide', 'dropout', 'two-dtypes'],
)
def test_aggregated_kernels_are_chosen(monkeypatch, d, dropout_p, other, chosen):
    """On a GPU in half precision, for what they take."""
    monkeypatch.setattr(aggregated_operator, 'triton_multiplies', lambda _: True)
    monkeypatch.setattr('mmattn.ops.library.HAS_LIBRARY', False)  # these tensors are on the CPU
    query = torch.zeros(1, 1, 1, 1, d, dtype=BFLOAT)
    assert aggregated_operator.fastest(query, query, query.to(other), dropout_p) == chosen


GRAPHS = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from triton_report import no_device
from mmattn.ops import elsa_attention

class Operator(torch.nn.Module):
    def forward(self, logits, value, ghost_add):
        return elsa_attention(logits, value, None, ghost_add)

graphs = []
no_device(90)
with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
    shapes = (2, 8, 9, 3, 49), (2, 8, 9, 96), (96, 7, 7)
    inputs = tuple(torch.empty(shape, device='cuda', dtype=torch.bfloat16) for shape in shapes)
    keep = lambda graph, _: graphs.append(graph) or graph
    out = torch.compile(Operator(), backend=aot_autograd(fw_compiler=keep), fullgraph=True)(*inputs)
    assert out.shape == inputs[1].shape and out.dtype == torch.bfloat16 and out.is_cuda
    graphs += [torch.export.export(Operator(), inputs, strict=strict).graph_module for strict in (False, True)]
print(*('triton_kernel' in graph.code for graph in graphs))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.compiler, 'is_exporting'), reason='only torch 2.7 tells export from compile')
def test_kernels_in_graphs():
    """On a GPU, torch.compile keeps the kernels, and torch.export does not. The GPU and its tensors are pretended, in a
    process of its own, because this one interprets the kernels."""
    env = {name: text for name, text in os.environ.items() if name != 'TRITON_INTERPRET'}
    env['PYTHONPATH'] = os.pathsep.join(map(str, (ROOT, ROOT / 'tools' / 'dev')))
    command = [sys.executable, '-c', GRAPHS]
    assert subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout == 'True False False\n'


DOUBLES = """
import json
from functools import partial
from types import SimpleNamespace
import torch
from triton._C.libtriton import ir
from triton.runtime import JITFunction
from triton_report import CASES, gsa_step, launched, layer_norm, norm

def lower(kernel, key, signature, device, constants, options, attributes, warmup):
    _, _, target, backend, _ = kernel.device_caches[device]
    given = {name: 'fp64' if kind == 'fp32' else kind for name, kind in signature.items()}
    text = ''
    if given != signature:
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        functions = backend.get_codegen_implementation(options), backend.get_module_map()
        module = kernel.ASTSource(kernel, given, constants, attributes).make_ir(target, options, *functions, context)
        text = str(backend.make_ttir(module, {}, options, target.arch))
    return SimpleNamespace(name=kernel.fn.__name__, lines=[line for line in text.splitlines() if 'f64' in line])

JITFunction._do_compile = lower
for name, case in CASES.items():
    if getattr(case, 'func', None) not in (norm, layer_norm, gsa_step):  # torch.compile does not come to their kernels
        for kernel, lowered in launched(90, partial(case, torch.bfloat16)):
            print(json.dumps([name, kernel, *lowered.lines]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split('.')[:2])) < (3, 6), reason='tools/dev/triton_report.py needs Triton 3.6'
)
def test_kernels_compute_in_float32():
    """torch.compile gives kernels float64 for floats of Python. They only convert these: else products of matrices do
    not compile, and all is slow that comes from them."""
    env = {name: text for name, text in os.environ.items() if name != 'TRITON_INTERPRET'}
    env['PYTHONPATH'] = os.pathsep.join(map(str, (ROOT, ROOT / 'tools' / 'dev')))
    command = [sys.executable, '-c', DOUBLES]
    text = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = [row for row in map(json.loads, text.splitlines()) if row[2:]]
    assert rows and all('tt.func' in row[2] for row in rows)
    assert not [row for row in rows if any('= arith.truncf %' not in line for line in row[3:])]


NORM = {'_norm_statistics', '_norm_relu', '_norm_relu_sums', '_norm_relu_gradient'}
MAPS = {'_pool', '_transpose'}
LAYER_NORM = {'_sum_and_norm', '_sum_and_norm_gradient'}
GELU = {'_gelu', '_gelu_gradient'}
DEPTHWISE = {'_depthwise', '_depthwise_gradient'}
ELSA_KERNELS = {'_elsa', '_elsa (reverse)', '_elsa_logits_gradient', '_elsa_ghost_gradient'}
AXIAL_GRADIENTS = {'_axial_query_gradient', '_axial_value_gradient', '_axial_table_gradient'}
GSA = {'_axial', *AXIAL_GRADIENTS, '_content_parts', '_content_merge', '_content_gradient', *NORM}
MEAN_SHIFT = {'_mean_shift', '_mean_shift_query_gradient', '_mean_shift_key_gradient'}
NEIGHBOURHOOD = {'_neighbourhood', '_neighbourhood_query_gradient', '_neighbourhood_key_gradient'}
WINDOWS = {'_windows', '_windows_gradient', '_windows_bias_gradient'}
AGGREGATED = {'_unit_keys', '_aggregated', '_aggregated_bias_gradient'} | {
    f'_aggregated_{part}_gradient' for part in ('query', 'key', 'pooled')
}
PRODUCTS = {'_products', '_products_query_gradient', '_products_key_gradient'}
SPILL = {
    '_content_gradient',
    '_depthwise_gradient',
    '_norm_relu_sums',
    '_norm_relu_gradient',
    '_elsa',
    '_elsa (reverse)',
    '_content_parts',
    '_neighbourhood_key_gradient',
    *AGGREGATED - {'_unit_keys', '_aggregated_key_gradient'},
    *MEAN_SHIFT,
    *PRODUCTS - {'_products'},
}
MORE_REGISTERS = dict.fromkeys(
    ('_mean_shift_key_gradient', '_products_key_gradient', '_windows', '_windows_gradient'), 168
)
#: by architecture, of a program that has all logits of a window, and their gradients and sums, in registers; and of
#: GSA's gradients in float16 with 64 channels, which have 512 threads, so at most 128 registers
MORE_SPILLS = dict.fromkeys(AXIAL_GRADIENTS, {80: 128, 90: 128, 100: 128}) | {
    '_aggregated': {80: 320},
    '_depthwise': {75: 8, 80: 8},  # in float32
    '_depthwise_gradient': {100: 240},  # in float32, with a gate
    '_windows': {80: 256, 90: 128, 100: 1024},
    '_windows_gradient': {80: 2816, 90: 1536, 100: 3200},
}


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split('.')[:2])) < (3, 6), reason='tools/dev/triton_report.py needs Triton 3.6'
)
@pytest.mark.parametrize('arch', (75, 80, 90, 100))
@pytest.mark.parametrize(
    'cases, kernels',
    [
        (['7 x 7, ghost add', '7 x 7, ghost none', '7 x 7, ghost mul + add'], ELSA_KERNELS),
        (['5 x 5, ghost add', '3 x 3, ghost add'], ELSA_KERNELS),
        (['7 x 7 attention', '7 x 7 attention, no bias'], NEIGHBOURHOOD),
        ([f'{k} x {k} attention, products' for k in (7, 13)] + ['7 x 7 attention, products, no bias'], PRODUCTS),
        (['depth-wise, 3 x 3', 'depth-wise and gate, 3 x 3'], DEPTHWISE),
        (['norm and ReLU', 'norm, sum and ReLU'], NORM),
        (['pooled and transposed'], MAPS),
        ([f'sum and norm, {C} channels' for C in (96, 512, 2048)], LAYER_NORM),
        (['GELU and linear layer'], GELU),
        ([f'{name}, {d} channels' for name in ('GSA', 'GSA in training') for d in (16, 32, 64)], GSA),
        (['mean shift, 64 channels', 'mean shift, 32 channels'], MEAN_SHIFT),
        (['mean shift in windows', 'windows, 7 x 7', 'windows, 12 x 12'], WINDOWS),
        ([f'neighbours and {pools}² pooled tokens, 24 channels' for pools in (16, 7)], AGGREGATED),
    ],
    ids=(
        'elsa-7 elsa-5-and-3 neighbourhood products depth-wise norm map layer-norm gelu gsa mean-shift windows '
        'aggregated'
    ).split(),
)
def test_kernels_fit_a_gpu(tmp_path, arch, cases, kernels):
    """No kernel takes so many registers that few programs fit a multiprocessor. Only some spill, and only a few bytes:
    on an H100, this was faster than more registers. All kernels are compiled."""
    if arch < 80 and kernels in (AGGREGATED, GSA, MEAN_SHIFT, PRODUCTS, WINDOWS):
        pytest.skip('kernels with products of matrices need tensor cores')
    dtypes = ('float32', 'bfloat16', 'float16')
    options = [f'--arch={arch}', *(f'--dtype={dtype}' for dtype in dtypes), *(f'--case={case}' for case in cases)]
    command = [sys.executable, ROOT / 'tools' / 'dev' / 'triton_report.py', '--json', *options]
    # A new process, because this one interprets kernels. An empty cache, so that they are compiled.
    env = {**os.environ, 'TRITON_CACHE_DIR': str(tmp_path)}
    rows = json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    assert {row['kernel'] for row in rows} == kernels
    for row in rows:
        few = (256 if arch < 90 else 128) if row['kernel'] in SPILL else 0
        few = MORE_SPILLS.get(row['kernel'], {}).get(arch, few)
        assert row['spills'] <= few and 0 < row['registers'] <= MORE_REGISTERS.get(row['kernel'], 128), row


@pytest.mark.skipif(
    not hasattr(torch.library, 'triton_op'), reason='before torch 2.6, Triton has no operators of torch'
)
def test_modes_see_operators():
    """Operators of torch cost time where nothing looks at them, and are needed where something does: a mode that counts
    operations, a tracer, or tensors of another kind, whose memory kernels do not know."""
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q = torch.randn(1, 1, 16, 16, device=DEVICE)
    mean_shift_attention(q, q, q, None, backend='triton')
    assert not seen
    with Mode():
        mean_shift_attention(q, q, q, None, backend='triton')
    assert 'mmattn.mean_shift.default' in seen
    from torch.testing._internal.two_tensor import TwoTensor

    found = []

    class Other(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            found.append(str(function))
            return super().__torch_dispatch__(function, types, args, kwargs)

    mean_shift_attention(Other(q, q), q, q, None, backend='triton')
    assert 'mmattn.mean_shift.default' in found
