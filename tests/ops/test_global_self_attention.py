from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from mmattn.ops.global_self_attention import BEYOND, axial_attention, batched, content_attention
from mmattn.ops.global_self_attention.table import fit_table
from tests.ops.measuring import TensorSizes

PATHS = [partial(axial_attention, backend=name) for name in ('reference', 'batched', 'exported')]
#: only 'batched' works on blocks of lines
MOST = batched.MAX_SCORES
BACKENDS = [('reference', MOST), ('batched', MOST), ('batched', 0), ('exported', MOST)]


@pytest.fixture(params=[MOST, 0], ids=['whole', 'line by line'])
def max_scores(request, monkeypatch):
    monkeypatch.setattr(batched, 'MAX_SCORES', request.param)


def make_inputs(B, H, W, heads, k, v, L, dtype=torch.float64):
    return (
        torch.randn(B, H, W, heads, k, dtype=dtype),
        torch.randn(B, H, W, heads, v, dtype=dtype),
        torch.randn(2 * L - 1, k, dtype=dtype),
    )


def embedding(table, shift, length, beyond):
    """The embedding of one relative position on lines of a length, by hand."""
    L = len(table) // 2 + 1
    if length <= L or beyond == 'mask':
        return table[shift + L - 1] if abs(shift) < L else torch.zeros_like(table[0])
    place = (shift + length - 1) / (2 * length - 2) * (2 * L - 2)  # ends on ends
    below = min(int(place + 1e-9), max(2 * L - 3, 0))
    above = min(below + 1, 2 * L - 2)
    return (table[below] + (place - below) * (table[above] - table[below])) * L / length


def axial_by_hand(query, value, table, dim, beyond, key=None, softmax=False):
    """Equation 2, one pixel and one neighbour at a time; with keys, and with a softmax over the pixels that are
    attended to."""
    out = torch.zeros_like(value)
    length, L = query.shape[dim], len(table) // 2 + 1
    key = torch.zeros_like(query) if key is None else key
    for y, x in torch.cartesian_prod(*map(torch.arange, query.shape[1:3])).tolist():
        here = (y, x)[dim - 1]
        seen = [i for i in range(length) if beyond == 'stretch' or abs(i - here) < L]
        pixels = [(i, x) if dim == 1 else (y, i) for i in seen]
        scores = torch.stack(
            [
                (query[:, y, x] * (key[:, v, u] + embedding(table, i - here, length, beyond))).sum(-1)
                for i, (v, u) in zip(seen, pixels)
            ]
        )
        weights = scores.softmax(0) if softmax else scores
        out[:, y, x] = sum(weight[..., None] * value[:, v, u] for weight, (v, u) in zip(weights, pixels))
    return out


def content_by_hand(query, key, value):
    """Equation 1 with a weight for every pair of pixels."""
    weights = key.flatten(1, 2).softmax(1)
    scores = torch.einsum('bpnk,bqnk->bpnq', query.flatten(1, 2), weights)
    return torch.einsum('bpnq,bqnv->bpnv', scores, value.flatten(1, 2)).view(value.shape)


@pytest.mark.parametrize('backend, max_scores', BACKENDS, indirect=['max_scores'])
@pytest.mark.parametrize('dim', [1, 2])
@pytest.mark.parametrize('beyond', BEYOND)
def test_axial_equations(backend, dim, beyond, max_scores):
    """Every path computes the paper's sum: direction and sign of the shift, both rules for lines longer than L. Those
    that take keys and a softmax have them, too."""
    for L in (1, 3, 4, 5, 8):
        inputs = make_inputs(2, 4, 5, 2, 3, 4, L)
        for key, softmax in ((None, False), (torch.randn_like(inputs[0]), False), (None, True), (inputs[0], True)):
            if (key is None and not softmax) or backend != 'exported':
                out = axial_attention(*inputs, dim, beyond, backend, key=key, softmax=softmax)
                expected = axial_by_hand(*inputs, dim, beyond, key, softmax)
                torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)  # L / l is rounded to float32


@given(B=st.integers(1, 2), H=st.integers(1, 7), W=st.integers(1, 7), heads=st.integers(1, 3))
def test_content_equals_its_quadratic_form(B, H, W, heads):
    """All backends equal the quadratic form: softmax of the keys over all pixels, then a score for each pair."""
    query, key, value = torch.randn(3, B, H, W, heads, 4, dtype=torch.float64)
    for backend in ('reference', 'batched', 'exported'):
        out = content_attention(query, key, value, backend=backend)
        torch.testing.assert_close(out, content_by_hand(query, key, value))


@pytest.mark.parametrize('dim', [1, 2])
@pytest.mark.parametrize('beyond', BEYOND)
@pytest.mark.parametrize('softmax, with_key', [(False, False), (False, True), (True, True)])
def test_axial_gradcheck(dim, beyond, softmax, with_key, max_scores, fast_mode):
    """The hand-written backward pass is the derivative of the forward pass, by both rules, in every form."""
    inputs = make_inputs(2, 3, 4, 2, 2, 3, 2)
    inputs = [t.requires_grad_() for t in (*inputs, *[torch.randn_like(inputs[0])] * with_key)]

    def attend(query, value, table, key=None):
        return axial_attention(query, value, table, dim, beyond, key=key, softmax=softmax)

    assert torch.autograd.gradcheck(attend, inputs, fast_mode=fast_mode)


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.parametrize('max_scores', [0], ids=['line by line'], indirect=True)  # a graph has all lines in any case
def test_compiled_gradients(max_scores):
    """torch.compile gives the gradients of eager mode; it can silently lose those of tensors written in place."""
    inputs = [t.requires_grad_() for t in make_inputs(1, 3, 4, 2, 2, 2, 2)]
    torch._dynamo.reset()  # torch counts graphs of a function in all tests
    compiled = torch.compile(axial_attention, fullgraph=True, backend='aot_eager')
    results = []
    for path in (compiled, axial_attention):
        out = path(*inputs, 1, 'stretch', key=inputs[0].sin(), softmax=True)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    torch.testing.assert_close(*results)


def test_no_row_of_a_table_is_gathered():
    """torch.compile needs minutes for rows that are gathered by an index which depends on the size of the map."""
    graph = make_fx(lambda table: fit_table(table, 9, 'stretch'))(torch.randn(7, 3))
    called = {str(node.target).split('.')[1] for node in graph.graph.nodes if node.op == 'call_function'}
    assert 'mm' in called and not called & {'embedding', 'index', 'index_select', 'gather'}


def test_tables_are_fitted_in_their_own_precision():
    """Autocast does not round the weights of the interpolation."""
    table = torch.randn(7, 3)
    with torch.autocast('cpu', torch.bfloat16):
        fitted = fit_table(table, 9, 'stretch')
    assert torch.equal(fitted, fit_table(table, 9, 'stretch'))


def test_scores_are_few_and_not_kept(monkeypatch):
    """No tensor is larger than MAX_SCORES, here 1 / 14 of all scores, and tensors kept for the backward pass are no
    larger than the map."""
    monkeypatch.setattr(batched, 'MAX_SCORES', 2**19)
    saved = []
    inputs = [t.requires_grad_() for t in make_inputs(1, 96, 96, 8, 4, 4, 96, torch.float32)]
    with (
        TensorSizes() as sizes,
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
    ):
        axial_attention(*inputs, 1).sum().backward()
    assert max(sizes.found) <= 2**19
    assert max(saved) == inputs[0].numel()


def half_precision(attend, dtype, size, *tensors):
    """Result and gradients of ``attend(query, ..., value)``, in half precision and in float64.

    Inputs are of a size and rounded, the value float32 as under autocast. The loss sees outputs through a norm, as in a
    network, and is scaled, as a GradScaler does.
    """
    inputs = [(size * t).to(dtype).requires_grad_() for t in tensors]
    inputs[-1] = inputs[-1].detach().float().requires_grad_()
    results = []
    for tensors in (inputs, [t.double() for t in inputs]):
        out = attend(*tensors)
        rms = out.detach().double().square().mean((1, 2, 3, 4), keepdim=True).sqrt()
        loss = 2**10 * (out / rms).square().mean()
        results.append((out.detach(), *torch.autograd.grad(loss, inputs)))
    return results


def assert_near(half, exact, tolerance):
    """Every sample is near the exact one, relative to the largest value."""
    for one, other in zip(half.double(), exact.double()):
        assert (one - other).abs().max() < tolerance * other.abs().max()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
def test_content_in_half_precision(dtype, size):
    """Errors are those of rounded inputs and output, at any scale: the softmax and the mean over all pixels are not
    rounded, and results too large for float16 are float32."""
    inputs = torch.randn(3, 1, 64, 64, 2, 4)
    (out, *grads), (exact, *_) = half_precision(content_attention, dtype, size, *inputs)
    assert out.dtype == torch.float32 and content_attention(*inputs.to(dtype)).dtype == dtype
    assert_near(out, exact, 4 * torch.finfo(dtype).eps)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('size', [1e-3, 1.0, 1e3])
@pytest.mark.parametrize('backend', ['reference', 'batched'])
def test_axial_in_half_precision(backend, dtype, size):
    """Scores are rounded, their sum is not. Results and gradients are right also where float16 would overflow, and a
    sample is not affected by a larger one beside it."""
    query, value, table = make_inputs(2, 64, 8, 2, 8, 8, 64, torch.float32)
    query[0] *= 8
    table = table.to(dtype).float()
    half, exact = half_precision(
        lambda query, value: axial_attention(query, value, table.to(value.dtype), 1, backend=backend),
        dtype,
        size,
        query,
        value,
    )
    assert half[0].dtype == torch.float32
    assert axial_attention(query.to(dtype), value.to(dtype), table, 1, backend=backend).dtype == dtype
    for ours, reference in zip(half, exact):
        assert_near(ours, reference, 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize('dtype', [torch.float16])
def test_samples_have_scales_of_their_own(dtype):
    """In float16, an image far smaller than another one in the batch is not rounded more than alone."""
    query, value, table = make_inputs(2, 6, 5, 2, 4, 4, 8, torch.float32)
    query, value = (query * torch.tensor([2.0**10, 2.0**-12]).view(2, 1, 1, 1, 1)).to(dtype), value.to(dtype)
    for attend in (
        lambda query, value: axial_attention(query, value, table, 1),
        lambda query, value: content_attention(query, value, value),
    ):
        torch.testing.assert_close(attend(query, value)[1:], attend(query[1:], value[1:]), atol=0, rtol=1e-3)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('softmax', [False, True])
def test_axial_content_in_half_precision(dtype, softmax):
    """Computed in float32, under autocast too: products of keys and queries may be too large for float16."""
    query, value, table = make_inputs(1, 32, 8, 2, 8, 8, 32, torch.float32)
    tensors = [(100 * query).to(dtype), value, table, (100 * query).to(dtype)]

    def attend(query, value, table, key):
        return axial_attention(query, value, table, 1, key=key, softmax=softmax)

    with torch.autocast('cpu', torch.bfloat16):
        out = attend(*tensors)
    assert out.dtype == torch.float32
    assert_near(out, attend(*(t.double() for t in tensors)), 1e-5)
