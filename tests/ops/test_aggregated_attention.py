"""Neighbours and pooled tokens in one softmax, beside explicit loops."""

import itertools
import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from mmattn.ops import aggregated_attention, library
from mmattn.ops.aggregated_attention import PooledBias, cosine_attention, table_of_pairs
from mmattn.ops.any_size import distances, pool_to
from mmattn.ops.gelu import gelu_gated
from mmattn.packages import version_numbers
from tests.ops.operators import aggregated, assert_near, results

TABLE = import_module('mmattn.ops.aggregated_attention.table')
SHIFTED = import_module('mmattn.ops.aggregated_attention.shifted')


def make_inputs(B, H, W, heads, d, k, h, w):
    call, shapes = aggregated((B, H, W), heads, d, k, h, w)
    return call, {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def by_hand(query, key_value, pooled, temperature, embedding, bias, pooled_bias, tokens, token_bias):
    """One pixel, head and key at a time."""
    (B, H, W, heads, _), out, reach = query.shape, torch.zeros_like(query), int(bias.shape[1] ** 0.5) // 2
    scale = (1 + temperature.exp()).log()
    for b, y, x, n in itertools.product(*map(range, (B, H, W, heads))):
        unit, products, biases, values, static = query[b, y, x, n] / query[b, y, x, n].norm(), [], [], [], 0
        for j, (dy, dx) in enumerate(itertools.product(range(-reach, reach + 1), repeat=2)):
            i = y + dy, x + dx
            if 0 <= i[0] < H and 0 <= i[1] < W:
                key, value = key_value[b, i[0], i[1], :, n]
                products.append((unit + embedding[n]) @ key / key.norm())
                biases.append(bias[n, j])
                values.append(value)
                static = static + (unit @ tokens[n, :, j] + token_bias[n, j]) * value
        for i in itertools.product(*map(range, pooled.shape[1:3])):
            key, value = pooled[b, i[0], i[1], :, n]
            products.append((unit + embedding[n]) @ key / key.norm())
            biases.append(pooled_bias[n, y, i[0], x, i[1]])
            values.append(value)
        logits = scale[n] * math.log(len(products)) * torch.stack(products) + torch.stack(biases)
        out[b, y, x, n] = logits.softmax(0) @ torch.stack(values) + static
    return out


@pytest.mark.parametrize('sizes', [(2, 3, 4, 2, 3, 3, 1, 2), (1, 1, 2, 1, 2, 5, 1, 1)], ids=['map', 'smaller-than-k'])
def test_the_reference_is_the_equation(sizes):
    call, tensors = make_inputs(*sizes)
    torch.testing.assert_close(call(*tensors.values(), backend='reference'), by_hand(**tensors))


@pytest.mark.parametrize(
    'sizes', [(2, 7, 5, 2, 4, 3, 3, 2), (1, 2, 1, 2, 3, 5, 1, 1), (0, 1, 3, 1, 2, 3, 1, 2)], ids=str
)
def test_shifted(sizes, monkeypatch):
    """It gives the reference's results and gradients; in inference, also some rows at a time."""
    call, tensors = make_inputs(*sizes)
    given, upstream = list(tensors.values()), torch.randn_like(tensors['query'])
    expected = results(call, given, upstream, backend='reference')
    assert_near(results(call, given, upstream), expected, 1e-12)
    B, H, W, heads, _, k, h, w = sizes
    monkeypatch.setattr(SHIFTED, 'MAX_WEIGHTS', 2 * B * W * heads * (k**2 + h * w))
    rows, whole = [], tensors['pooled_bias']
    tensors['pooled_bias'] = SimpleNamespace(of_rows=lambda part: rows.append(part) or whole[:, part])
    with torch.no_grad():
        out = aggregated_attention(**tensors)
    assert_near([out], expected[:1], 1e-12)
    assert len(rows) == -(-H // 2)


def test_vectors_of_zero():
    """They have no gradient. One that is divided by a tiny norm would be the only one that is left after clipping."""
    call, tensors = make_inputs(1, 2, 3, 2, 4, 3, 1, 2)
    tensors['query'][0, 1, 2, 1] = 0
    tensors['key_value'][0, 0, 1, 0, 0] = 0
    _, of_query, of_key_value, *_ = results(call, list(tensors.values()), torch.ones(1, 2, 3, 2, 4), 'reference')
    assert of_query[0, 1, 2, 1].count_nonzero() == of_key_value[0, 0, 1, 0, 0].count_nonzero() == 0
    assert of_query[0, 0, 0].isfinite().all() and of_key_value.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_shifted_in_few_digits(dtype):
    """In C++ on the CPU, and with the softmax in float32."""
    call, tensors = make_inputs(2, 6, 7, 2, 8, 3, 2, 2)
    tensors = [x.to(dtype) for x in tensors.values()]
    exact = call(*(x.double() for x in tensors), backend='reference')
    out = call(*tensors)
    assert out.dtype == dtype
    assert_near([out], [exact], 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize('name', ['key_value', 'pooled', 'bias', 'tokens', 'temperature'])
def test_shapes_that_do_not_fit(name):
    call, tensors = make_inputs(1, 3, 3, 2, 4, 3, 2, 1)
    tensors[name] = tensors[name][..., :-1]
    with pytest.raises(ValueError, match=f'query must be .*, not .*{name} '):
        call(*tensors.values())


@pytest.mark.parametrize('to', [((6, 3), (4, 2)), ((7, 3), (5, 2)), ((1, 1), (9, 4))], ids=str)
@pytest.mark.parametrize('of', [None, ((4, 2), (4, 2))], ids=['own', 'interpolated'])
def test_bias_by_products(of, to):
    """Of a GPU. It is that of the CPU, and so is the gradient of the table."""
    of = of or to
    table = torch.randn(2, *(len(distances(*axis, True, None)[0]) for axis in of), dtype=torch.float64)
    found = []
    for by in (TABLE._by_places, TABLE._by_products):
        x = table.clone().requires_grad_()
        bias = by(x, of, to, of != to)
        torch.testing.assert_close(bias.of_rows(slice(0, 1)), bias.of_rows(slice(None))[:, :1])
        out = bias.of_rows(slice(None))
        found.append([out, *torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum(), x)])
    torch.testing.assert_close(*found)


def test_large_matrices_are_not_kept(monkeypatch):
    """Those of images of many sizes would fill the memory of a GPU."""
    made, (table, to) = [], (torch.randn(2, 10, 6), ((6, 3), (4, 2)))
    monkeypatch.setattr(TABLE, 'MAX_KEPT', 10 * 6 * 3 - 1)
    monkeypatch.setattr(TABLE, 'kept', lambda make, like, *sizes: made.append(sizes) or make(*sizes, like.device))
    TABLE._by_products(table, to, to, False)
    assert [sizes[1] for sizes in made if len(sizes) == 3 and sizes[2] == table.dtype] == [(4, 2)]


@pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
@pytest.mark.parametrize('heads, channels, sizes', [(3, 21, (4, 70)), (9, 32, (2, 16))], ids=['parts', 'heads'])
def test_table_in_cpp(heads, channels, sizes):
    """The MLP of all pairs of distances, its gradients and second derivatives, beside torch's layers in float64."""
    layers = torch.nn.Linear(2, channels), torch.nn.Linear(channels, heads)
    rows, columns = (torch.randn(size) for size in sizes)
    upstream, found = torch.randn(heads, *sizes), []
    for dtype in (torch.float32, torch.float64):
        first, second = (layer.to(dtype) for layer in layers)
        out = table_of_pairs(first, second, rows.to(dtype), columns.to(dtype), channels)
        weights = [x for layer in layers for x in layer.parameters()]
        gradients = torch.autograd.grad((out.pow(2) * upstream.to(dtype)).sum(), weights, create_graph=True)
        twice = torch.autograd.grad(gradients[2].square().sum(), weights)
        found.append([x.detach() for x in (out, *gradients, *twice)])
    assert_near(*found, 1e-5)


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='torch cannot tell compiling from exporting')
def test_one_graph_of_all_sizes():
    """Of the table of the bias and of the gated feed-forward layer: their C++ operators take symbolic sizes."""
    torch._dynamo.reset()  # torch counts graphs of a function in all tests
    layers, graphs = (torch.nn.Linear(2, 8), torch.nn.Linear(8, 3)), CompileCounterWithBackend('aot_eager')

    def both(rows, columns, x, gate):
        return table_of_pairs(*layers, rows, columns, 8), gelu_gated(x, gate)

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend=graphs)
    for size in (5, 9, 12):
        given = [torch.randn(shape, requires_grad=True) for shape in (size, size + 3, (2, size, 4), (2, size, 4))]
        found, expected = compiled(*given), both(*given)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(sum(map(torch.sum, out)), given[2:]) for out in (found, expected))
        )
    assert graphs.frame_count == 1


@pytest.mark.parametrize('size, pooled', [((7, 10), (3, 4)), ((8, 4), (2, 4)), ((1, 5), (1, 1))], ids=str)
def test_pools_of_a_graph(size, pooled, monkeypatch):
    """Adaptive pooling as a product of matrices is torch's."""
    x = torch.randn(2, *size, 3, dtype=torch.float64)
    expected = pool_to(x, *pooled)
    monkeypatch.setattr('mmattn.ops.any_size.is_tracing', lambda: True)
    torch.testing.assert_close(pool_to(x, *pooled), expected)


@pytest.mark.skipif(not library.HAS_LIBRARY, reason='the C++ code was not compiled')
@pytest.mark.parametrize('trained', [None, (5, 3), (14, 2)], ids=['whole', 'smaller', 'larger'])
@pytest.mark.parametrize('sizes', [(2, 3, 19, 2, 5, 3, 11, 9), (1, 2, 8, 1, 40, 5, 2, 8)], ids=['odd', 'tiles'])
def test_cpp(sizes, trained):
    """Results and gradients of the C++ code are the reference's: in whole tiles and parts of them, with vectors of
    zero, with a bias that is the map's, or interpolated."""
    B, H, W, heads, d, k, h, w = sizes
    _, tensors = make_inputs(*sizes)
    for name in ('query', 'key_value', 'pooled'):
        tensors[name][0, 0, 0] = 0
    X, J = trained or (W, w)
    rows, columns = (  # as of pools of two pixels
        torch.arange(size)[:, None] + 2 * torch.arange(count).flip(0) for size, count in ((H, h), (X, J))
    )
    of_rows = (H, h) if trained else (H + 2 * h,)
    rows = None if trained else rows
    tensors['pooled_bias'] = torch.randn(heads, *of_rows, X + 2 * J, dtype=torch.float64)

    def call(*tensors, backend=None):
        given = dict(zip(names, tensors))
        bias = PooledBias(given.pop('pooled_bias'), columns, rows, trained and (W, w))
        return aggregated_attention(pooled_bias=bias, backend=backend, **given)

    names, upstream = list(tensors), torch.randn_like(tensors['query'])
    expected = results(call, list(tensors.values()), upstream, backend='reference')
    found = results(call, [x.float() for x in tensors.values()], upstream.float(), backend='cpp')
    assert_near(found, expected, 1e-5)


@pytest.mark.parametrize('backend', ['reference', 'fused', 'cpp'])
@pytest.mark.parametrize('size', [(2, 3, 4, 2, 3), (1, 9, 13, 1, 8)], ids=str)
def test_cosine_attention(size, backend):
    """One pixel and head at a time; and the gradients."""
    if backend == 'cpp' and not library.HAS_LIBRARY:
        pytest.skip('the C++ code was not compiled')
    B, H, W, heads, d = size
    shapes = dict(query=size, key_value=(B, H, W, 2, heads, d), temperature=(heads,), embedding=(heads, d))
    tensors = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    table, upstream = torch.randn(heads, 2 * H - 1, 2 * W - 1, dtype=torch.float64), torch.randn(size)
    rows, columns = (torch.arange(n)[:, None] + torch.arange(n).flip(0) for n in (H, W))

    def call(query, key_value, temperature, embedding, table, backend=None):
        return cosine_attention(
            query, key_value, temperature, embedding, PooledBias(table, columns, rows), 0.0, backend
        )

    def by_hand(query, key_value, temperature, embedding, table, backend):
        out, norms = torch.zeros_like(query), (query.norm(dim=-1), key_value[..., 0, :, :].norm(dim=-1))
        for b, y, x, n in itertools.product(*map(range, size[:4])):
            own = (query[b, y, x, n] / norms[0][b, y, x, n] + embedding[n]) * (1 + temperature[n].exp()).log()
            logits = key_value[b, :, :, 0, n] @ own * math.log(H * W) / norms[1][b, :, :, n]
            weights = (logits + table[n][rows[y]][:, columns[x]]).flatten().softmax(0)
            out[b, y, x, n] = weights @ key_value[b, :, :, 1, n].flatten(0, 1)
        return out

    given, dtype = [*tensors.values(), table], torch.float32 if backend == 'cpp' else torch.float64
    expected = results(by_hand, given, upstream.double())
    found = results(call, [x.to(dtype) for x in given], upstream.to(dtype), backend=backend)
    assert_near(found, expected, 1e-5 if backend == 'cpp' else 1e-12)


def test_cosine_attention_of_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match='query must be .*, not query .*embedding '):
        bias = PooledBias(torch.zeros(2, 3, 3), torch.zeros(2, 2).int(), torch.zeros(2, 2).int())
        cosine_attention(*map(torch.zeros, ((1, 2, 2, 2, 4), (1, 2, 2, 2, 2, 4), (2,), (2, 3))), bias)
