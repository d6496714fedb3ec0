import math
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mmattn.ops.elsa import elsa_attention, neighbourhood_products, neighbourhood_shift, neighbourhood_sum
from tests.ops.measuring import TensorSizes

REFERENCE, SHIFTED, _ = PATHS = [partial(elsa_attention, backend=name) for name in ('reference', 'shifted', 'band')]


def make_inputs(B, H, W, heads, width, k, mul, add, dtype=torch.float64):
    C = heads * width
    return (
        torch.randn(B, H, W, heads, k * k, dtype=dtype),
        torch.randn(B, H, W, C, dtype=dtype),
        torch.rand(C, k, k, dtype=dtype) + 0.5 if mul else None,
        torch.randn(C, k, k, dtype=dtype) if add else None,
    )


def by_hand(logits, value, mul, add, dilation):
    """Equations 5, 7 and 8, one pixel, channel and neighbour at a time."""
    B, H, W, C = value.shape
    heads, taps = logits.shape[-2:]
    k = math.isqrt(taps)
    out = torch.zeros_like(value)
    for b, y, x, c in torch.cartesian_prod(*map(torch.arange, (B, H, W, C))).tolist():
        h = logits[b, y, x, c // (C // heads)].softmax(0).view(k, k)
        for i in range(k):
            for j in range(k):
                yy, xx = y + dilation * (i - k // 2), x + dilation * (j - k // 2)
                if 0 <= yy < H and 0 <= xx < W:
                    h_hat = h[i, j] * (1 if mul is None else mul[c, i, j]) + (0 if add is None else add[c, i, j])
                    out[b, y, x, c] += h_hat * value[b, yy, xx, c]
    return out


@pytest.mark.parametrize('path', PATHS)
@pytest.mark.parametrize('mul', [False, True])
@pytest.mark.parametrize('add', [False, True])
@pytest.mark.parametrize('dilation', [1, 2])
def test_equations(path, mul, add, dilation):
    """Every path computes the paper's sum: order of neighbours, zero border, channels of heads, both ghost matrices."""
    inputs = make_inputs(2, 4, 5, 2, 3, 3, mul, add)
    torch.testing.assert_close(path(*inputs, dilation), by_hand(*inputs, dilation))


@given(
    B=st.integers(1, 2),
    H=st.integers(1, 9),
    W=st.integers(1, 9),
    heads=st.integers(1, 3),
    width=st.integers(1, 4),
    k=st.sampled_from([1, 3, 5, 7]),
    dilation=st.integers(1, 3),
    mul=st.booleans(),
    add=st.booleans(),
)
@example(B=2, H=5, W=8, heads=3, width=2, k=7, dilation=2, mul=True, add=True)
@example(B=1, H=9, W=4, heads=2, width=3, k=3, dilation=1, mul=False, add=False)
def test_paths_agree(B, H, W, heads, width, k, dilation, mul, add):
    """The fast path and its gradients equal the reference's at any size, maps smaller than the kernel included."""
    inputs = [None if t is None else t.requires_grad_() for t in make_inputs(B, H, W, heads, width, k, mul, add)]
    given_inputs = [t for t in inputs if t is not None]
    grad = torch.randn(B, H, W, heads * width, dtype=torch.float64)
    results = []
    for path in PATHS:
        out = path(*inputs, dilation)
        results.append((out, *torch.autograd.grad(out, given_inputs, grad)))
    for others in results[1:]:
        for fast, reference in zip(others, results[0]):
            torch.testing.assert_close(fast, reference)


@pytest.mark.parametrize('mul', [False, True])
def test_gradcheck(mul):
    """The hand-written backward pass is the derivative of the forward pass."""
    inputs = [t.requires_grad_() for t in make_inputs(1, 3, 4, 2, 2, 3, True, True)]
    if not mul:
        inputs[2] = None
    assert torch.autograd.gradcheck(lambda *given: SHIFTED(*given, 2), inputs)


def test_no_copy_per_neighbour():
    """The fast path's largest tensor is the attention or the padded map, not k * k copies of the value map."""
    inputs = [t.requires_grad_() for t in make_inputs(1, 16, 16, 1, 32, 7, True, True)]
    with TensorSizes() as sizes:
        SHIFTED(*inputs).sum().backward()
    assert max(sizes.found) < 5 * inputs[1].numel()


@pytest.mark.parametrize('backend', ['shifted', 'cpp'])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(backend, dtype):
    """A sum of 49 terms in half precision has only the errors of its rounded inputs and output."""
    logits, value, mul, add = make_inputs(1, 8, 8, 2, 4, 7, True, False)
    exact = REFERENCE(logits, value, mul, add)
    half = elsa_attention(logits.to(dtype), value.to(dtype), mul.to(dtype), add, backend=backend)
    assert half.dtype == dtype
    assert (half - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize('backend', ['reference', 'shifted', 'band', 'cpp'])
def test_dropout_drops_weights(backend):
    """All of them at a rate of 1, and not the ghost summand. A lower rate leaves some."""
    logits, value, _, add = make_inputs(1, 4, 5, 2, 3, 3, False, True, torch.float32)
    path = partial(elsa_attention, backend=backend)
    without = REFERENCE(logits, value, torch.zeros_like(add), add)
    torch.testing.assert_close(path(logits, value, None, add, dropout_p=1.0), without)
    half = path(logits, value, None, add, dropout_p=0.5)
    assert not torch.allclose(half, without) and not torch.allclose(half, path(logits, value, None, add))


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(logits=torch.zeros(1, 4, 5, 2, 9)), 'same B, H and W'),
        (dict(logits=torch.zeros(1, 4, 4, 2, 8)), 'odd k, not 8'),
        (dict(logits=torch.zeros(1, 4, 4, 2, 16)), 'odd k, not 16'),
        (dict(logits=torch.zeros(1, 4, 4, 3, 9)), '4 channels of value do not divide into 3 heads'),
        (dict(ghost_mul=torch.zeros(4, 5, 5)), 'ghost_mul must be'),
        (dict(ghost_add=torch.zeros(2, 3, 3)), 'ghost_add must be'),
        (dict(dilation=0), 'dilation must be a whole number of at least 1, not 0'),
        (dict(dilation=1.5), 'dilation must be a whole number of at least 1, not 1.5'),
        (dict(logits=torch.zeros(1, 4, 4, 0, 9)), 'logits must have no empty dimension but the first'),
        (dict(value=torch.zeros(1, 4, 4, 4, dtype=torch.int64)), 'value must be floating-point numbers .*torch.int64'),
        (dict(ghost_mul=torch.zeros(4, 3, 3, device='meta')), 'must be on one device; .*value on cpu, ghost_mul on m'),
        (dict(dropout_p=math.nan), 'dropout_p must be a number from 0 to 1, not nan'),
        (dict(backend=''), "not ''"),
        (dict(backend=['cpp']), r"not \['cpp'\]"),
        (dict(backend='fast'), "backend must be None or one of reference, shifted, band, cpp, triton, not 'fast'"),
    ],
)
def test_bad_shapes_are_named(change, message):
    arguments = dict(logits=torch.zeros(1, 4, 4, 2, 9), value=torch.zeros(1, 4, 4, 4))
    with pytest.raises(ValueError, match=message):
        elsa_attention(**{**arguments, **change})


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.parametrize('lam', [False, True])
@pytest.mark.parametrize('backend', [None, 'shifted'])
def test_compiled_gradients(lam, backend):
    """torch.compile gives the gradients of eager mode; it can lose those of tensors that are written in place."""
    operator = partial(elsa_attention, backend=backend)
    logits, value = torch.randn(1, 6, 7, 2, 9, requires_grad=True), torch.randn(1, 6, 7, 8, requires_grad=True)
    mul = torch.randn(8, 3, 3) if lam else None
    compiled = torch.compile(operator, fullgraph=True, backend='aot_eager')
    results = [
        torch.autograd.grad(path(logits, value, mul).square().sum(), (logits, value)) for path in (operator, compiled)
    ]
    for eager, fast in zip(*results):
        assert eager.abs().max() > 0
        torch.testing.assert_close(fast, eager)


def sum_by_hand(weights, value, mul, dilation=1):
    """One pixel, channel and neighbour at a time."""
    B, H, W, C = value.shape
    heads, taps = weights.shape[-2:]
    k = math.isqrt(taps)
    out = torch.zeros_like(value)
    for b, y, x, c, j in torch.cartesian_prod(*map(torch.arange, (B, H, W, C, taps))).tolist():
        yy, xx = y + dilation * (j // k - k // 2), x + dilation * (j % k - k // 2)
        if 0 <= yy < H and 0 <= xx < W:
            factor = 1 if mul is None else mul[b, c, j] if mul.dim() == 3 else mul[c, j]
            out[b, y, x, c] += weights[b, y, x, c // (C // heads), j] * factor * value[b, yy, xx, c]
    return out


@pytest.mark.parametrize('mul', [None, (6, 9), (2, 6, 9)])
@pytest.mark.parametrize('dilation', [1, 2])
def test_neighbourhood_sum(mul, dilation):
    """The sum with weights of any sign, and filters of all or of each image; its gradients are derivatives."""
    inputs = [torch.randn(2, 3, 4, 2, 9), torch.randn(2, 3, 4, 6), None if mul is None else torch.randn(mul)]
    inputs = [None if x is None else x.double().requires_grad_() for x in inputs]
    torch.testing.assert_close(neighbourhood_sum(*inputs, dilation), sum_by_hand(*inputs, dilation))
    assert torch.autograd.gradcheck(lambda *given: neighbourhood_sum(*given, dilation), inputs, fast_mode=True)


def test_neighbourhood_sum_names_bad_shapes():
    weights, value = torch.zeros(2, 4, 4, 2, 9), torch.zeros(2, 4, 4, 4)
    with pytest.raises(ValueError, match='weights must hold k . k neighbours with odd k, not 8'):
        neighbourhood_sum(weights[..., :8], value)
    with pytest.raises(ValueError, match=r'mul must be \(4, 9\) or \(2, 4, 9\), not \(3, 4, 9\)'):
        neighbourhood_sum(weights, value, torch.zeros(3, 4, 9))


@pytest.mark.parametrize('H, W, k', [(4, 5, 3), (2, 3, 5)])
def test_products_and_shift(H, W, k):
    """Products of queries and neighbours' keys, and numbers read at the neighbour, by loops."""
    query, key = (torch.randn(2, H, W, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    numbers = torch.randn(2, H, W, 2, k * k, dtype=torch.float64, requires_grad=True)
    products, shifted = torch.zeros_like(numbers), torch.zeros_like(numbers)
    for y, x, j in torch.cartesian_prod(*map(torch.arange, (H, W, k * k))).tolist():
        yy, xx = y + j // k - k // 2, x + j % k - k // 2
        if 0 <= yy < H and 0 <= xx < W:
            products[:, y, x, :, j] = (query[:, y, x] * key[:, yy, xx]).sum(-1)
            shifted[:, y, x, :, j] = numbers[:, yy, xx, :, j]
    torch.testing.assert_close(neighbourhood_products(query, key, k), products)
    torch.testing.assert_close(neighbourhood_shift(numbers), shifted)
    assert torch.autograd.gradcheck(lambda q, v: neighbourhood_products(q, v, k), (query, key), fast_mode=True)
    assert torch.autograd.gradcheck(neighbourhood_shift, numbers, fast_mode=True)
