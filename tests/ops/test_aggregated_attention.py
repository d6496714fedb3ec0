"""Neighbours and pooled tokens in one softmax, beside explicit loops."""

import itertools
from importlib import import_module

import pytest
import torch

from mmattn.ops import aggregated_attention
from mmattn.ops.any_size import pool_to
from tests.ops.operators import assert_near, results

OPERATOR = import_module('mmattn.ops.aggregated_attention')
TENSORS = 'query', 'key', 'value', 'pooled_key', 'pooled_value', 'bias', 'pooled_bias', 'added'


def attend(*tensors, backend=None):
    """The operator with a tensor for the bias of pooled tokens."""
    *others, pooled_bias, added = tensors
    return aggregated_attention(*others, lambda rows: pooled_bias[:, rows], added, backend=backend)


def make_inputs(B, H, W, heads, d, k, M):
    shapes = [(B, H, W, heads, d)] * 3 + [(B, M, heads, d)] * 2
    shapes += [(heads, k * k), (heads, H, W, M), (B, H, W, heads, k * k)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def by_hand(query, key, value, pooled_key, pooled_value, bias, pooled_bias, added):
    """One pixel, head and key at a time."""
    (B, H, W, heads, _), out, reach = query.shape, torch.zeros_like(query), int(bias.shape[1] ** 0.5) // 2
    for b, y, x, n in itertools.product(*map(range, (B, H, W, heads))):
        logits, values, static = [], [], 0
        for j, (dy, dx) in enumerate(itertools.product(range(-reach, reach + 1), repeat=2)):
            i = y + dy, x + dx
            if 0 <= i[0] < H and 0 <= i[1] < W:
                logits.append(query[b, y, x, n] @ key[b, i[0], i[1], n] + bias[n, j])
                values.append(value[b, i[0], i[1], n])
                static = static + added[b, y, x, n, j] * values[-1]
        for m in range(pooled_key.shape[1]):
            logits.append(query[b, y, x, n] @ pooled_key[b, m, n] + pooled_bias[n, y, x, m])
            values.append(pooled_value[b, m, n])
        out[b, y, x, n] = torch.stack(logits).softmax(0) @ torch.stack(values) + static
    return out


@pytest.mark.parametrize('sizes', [(2, 3, 4, 2, 3, 3, 2), (1, 1, 2, 1, 2, 5, 1)], ids=['map', 'smaller-than-k'])
def test_the_reference_is_the_equation(sizes):
    tensors = make_inputs(*sizes)
    torch.testing.assert_close(attend(*tensors, backend='reference'), by_hand(*tensors))


@pytest.mark.parametrize('sizes', [(2, 7, 5, 2, 4, 3, 6), (1, 2, 1, 2, 3, 5, 1), (0, 1, 3, 1, 2, 3, 2)], ids=str)
def test_shifted(sizes, monkeypatch):
    """It gives the reference's results and gradients; in inference, also some rows at a time."""
    tensors = make_inputs(*sizes)
    upstream = torch.randn_like(tensors[0])
    expected = results(attend, tensors, upstream, backend='reference')
    assert_near(results(attend, tensors, upstream), expected, 1e-12)
    monkeypatch.setattr(OPERATOR, 'MAX_WEIGHTS', 2 * sizes[0] * sizes[2] * sizes[3] * (sizes[5] ** 2 + sizes[6]))
    rows = []
    with torch.no_grad():
        out = aggregated_attention(*tensors[:6], lambda part: rows.append(part) or tensors[6][:, part], tensors[7])
    assert_near([out], expected[:1], 1e-12)
    assert len(rows) == -(-sizes[1] // 2)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_shifted_in_few_digits(dtype):
    """In C++ on the CPU, and with the softmax in float32."""
    tensors = [x.to(dtype) for x in make_inputs(2, 6, 7, 2, 8, 3, 4)]
    exact = attend(*(x.double() for x in tensors), backend='reference')
    out = attend(*tensors)
    assert out.dtype == dtype
    assert_near([out], [exact], 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize('name', ['key', 'pooled_value', 'bias', 'added'])
def test_shapes_that_do_not_fit(name):
    tensors = dict(zip(TENSORS, make_inputs(1, 3, 3, 2, 4, 3, 2)))
    tensors[name] = tensors[name][..., :-1]
    with pytest.raises(ValueError, match=f'query, key and value must be .*, not .*{name} '):
        attend(*tensors.values())


@pytest.mark.parametrize('size, pooled', [((7, 10), (3, 4)), ((8, 4), (2, 4)), ((1, 5), (1, 1))], ids=str)
def test_pools_of_a_graph(size, pooled, monkeypatch):
    """Adaptive pooling as a product of matrices is torch's."""
    x = torch.randn(2, *size, 3, dtype=torch.float64)
    expected = pool_to(x, *pooled)
    monkeypatch.setattr('mmattn.ops.any_size.is_tracing', lambda: True)
    torch.testing.assert_close(pool_to(x, *pooled), expected)
