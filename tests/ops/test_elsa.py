import math
from functools import partial

import pytest
import torch

from mmattn.ops import library
from mmattn.ops.elsa import elsa_attention, neighbourhood_products, neighbourhood_shift, neighbourhood_sum
from tests.ops.measuring import TensorSizes

REFERENCE, SHIFTED, _ = PATHS = [partial(elsa_attention, backend=name) for name in ('reference', 'shifted', 'band')]
needs_library = pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')


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


@pytest.mark.parametrize('backend', ['shifted', 'cpp'])
def test_small_terms_count(backend):
    """49 weights of 1 / 49 sum to 1 in bfloat16, which rounds each sum of these by as much as a fifth of a weight."""
    logits, value = torch.zeros(1, 7, 7, 1, 49, dtype=torch.bfloat16), torch.ones(1, 7, 7, 4, dtype=torch.bfloat16)
    out = elsa_attention(logits, value, backend=backend)[0, 3, 3].float()
    assert (out - 1).abs().max() <= torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize('path', PATHS)
def test_dropout_keeps_the_ghost_head(path):
    logits, value, _, add = make_inputs(1, 4, 5, 2, 3, 3, False, True)
    without = REFERENCE(logits, value, torch.zeros_like(add), add)
    torch.testing.assert_close(path(logits, value, None, add, dropout_p=1.0), without)


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


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('mul', [None, (6, 9), (2, 6, 9)], ids=['none', 'all images', 'each image'])
@pytest.mark.parametrize('dilation', [1, 2])
def test_neighbourhood_sum(mul, dilation, dtype):
    """The sum with weights of any sign, and filters of all or of each image, in torch and in float32 in C++."""
    shapes = (2, 3, 4, 2, 9), (2, 3, 4, 6), *([mul] if mul else [])
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    results = []
    for tensors, path in ((inputs, neighbourhood_sum), ([x.double() for x in inputs], sum_by_hand)):
        out = path(*tensors, *[None] * (3 - len(tensors)), dilation)
        results.append([x.double() for x in (out, *torch.autograd.grad(out.square().sum(), inputs))])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures('torch_compiles')
def test_compiled_gradients():
    """torch.compile gives the gradients of eager mode; it can lose those of tensors that are written in place."""
    inputs = [x.requires_grad_() for x in make_inputs(1, 6, 7, 2, 4, 3, True, False, torch.float32)[:3]]
    compiled = torch.compile(SHIFTED, fullgraph=True, backend='aot_eager')
    results = [torch.autograd.grad(path(*inputs).square().sum(), inputs) for path in (SHIFTED, compiled)]
    assert all(x.abs().max() > 0 for x in results[0])
    torch.testing.assert_close(*results)


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.parametrize('path', [*PATHS, neighbourhood_sum, lambda weights, _: neighbourhood_shift(weights)])
def test_compiled_for_two_kernel_sizes(path):
    """From the second size on, torch.compile takes the number of neighbours for one that it does not know."""
    compiled = torch.compile(path, fullgraph=True, backend='eager')
    for k in (3, 5):
        inputs = make_inputs(1, 6, 7, 2, 4, k, False, False)[:2]
        torch.testing.assert_close(compiled(*inputs), path(*inputs))


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


@needs_library
def test_gradients_of_ghosts_keep_their_digits():
    """Sums over 65536 pixels are not kept in float32, which would lose four digits."""
    value, grad = torch.rand(1, 256, 256, 8), torch.rand(1, 256, 256, 8)
    add = torch.zeros(8, 1, 1, requires_grad=True)
    elsa_attention(torch.zeros(1, 256, 256, 1, 1), value, None, add, backend='cpp').backward(grad)
    exact = (value.double() * grad.double()).sum((0, 1, 2))
    assert (add.grad.flatten() / exact - 1).abs().max() < 1e-6
