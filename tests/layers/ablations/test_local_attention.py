import itertools
import math

import pytest
import torch

from mmattn.layers import LocalAttention, WindowAttention

TERMS = ('qk', 'qr', 'rk', 'b')
COMBINATIONS = [terms for n in range(1, 5) for terms in itertools.combinations(TERMS, n)]
NORMS = ('softmax', 'filter', 'scaled_filter', 'identity')


def by_hand(layer: LocalAttention, x: torch.Tensor) -> torch.Tensor:
    """Equation 4, one query, head and key at a time."""
    B, H, W, C = x.shape
    heads, side, in_windows = layer.num_heads, layer.side, layer.area == 'window'
    d, reach = C // heads, side - 1 if in_windows else side // 2
    tall, wide = (math.ceil(n / side) * side if in_windows else n for n in (H, W))
    padded = x.new_zeros(B, tall, wide, C)
    padded[:, :H, :W] = x
    shifts = [layer.shift if layer.shift_small_maps or n > side else 0 for n in (tall, wide)]
    projected = layer.pre_proj(padded).unflatten(-1, (-1, heads, d))
    v, rest = projected[..., 0, :, :], list(projected[..., 1:, :, :].unbind(-3))
    q = rest.pop(0) if {'qk', 'qr'} & set(layer.terms) else None
    k = rest.pop(0) if {'qk', 'rk'} & set(layer.terms) else None
    assert not rest

    def column(table, head, offset):
        """The numbers of a table for a head and an offset of key minus query."""
        position = (offset[0] + reach) * (2 * reach + 1) + offset[1] + reach
        return table.unflatten(0, (-1, d))[head % (len(table) // d), :, position]

    def area(y, x):
        """Offsets of the keys, and for each whether it is a neighbour in the map and not by the shift alone."""
        if not in_windows:
            for dy, dx in itertools.product(range(-reach, reach + 1), repeat=2):
                yield (dy, dx), (y + dy, x + dx), 0 <= y + dy < H and 0 <= x + dx < W
            return
        moved = [(place - s) % n for place, s, n in zip((y, x), shifts, (tall, wide))]
        first = [place // side * side for place in moved]
        for row, col in itertools.product(range(side), repeat=2):
            key = [(f + i + s) % n for f, i, s, n in zip(first, (row, col), shifts, (tall, wide))]
            same = all((a < s) == (b < s) for a, b, s in zip((y, x), key, shifts))
            yield (first[0] + row - moved[0], first[1] + col - moved[1]), key, same

    out = padded.new_zeros(B, tall, wide, heads, d)
    factor = d**-0.5 if layer.settings['scale_tables'] else 1
    for b, y, xx, h in itertools.product(range(B), range(H), range(W), range(heads)):
        logits, values, real = [], [], []
        for offset, key, inside in area(y, xx):
            in_map = in_windows or inside
            logit = x.new_zeros(())
            if 'qk' in layer.terms and in_map:
                logit = logit + q[b, y, xx, h] @ k[(b, *key, h)] / d**0.5
            if 'qr' in layer.terms:
                logit = logit + q[b, y, xx, h] @ column(layer.rk, h, offset) * factor
            if 'rk' in layer.terms and in_map:
                logit = logit + k[(b, *key, h)] @ column(layer.rq, h, offset) * factor
            if 'b' in layer.terms:
                logit = logit + layer.rb[h, (offset[0] + reach) * (2 * reach + 1) + offset[1] + reach]
            logits.append(logit)
            values.append(v[(b, *key, h)] if in_map else torch.zeros_like(v[0, 0, 0, 0]))
            real.append(inside or not in_windows)
        logits, real = torch.stack(logits), torch.tensor(real)
        if layer.norm == 'softmax':
            weights = logits.masked_fill(~real, -math.inf).softmax(0)
        elif layer.norm == 'identity':
            weights = logits * real
        else:
            deviation = ((logits - logits.mean()) ** 2).sum().div(len(logits) - 1).sqrt()
            weights = (logits - logits.mean()) / (deviation + 1e-10) * real
            weights = weights * (math.sqrt(2) / side if layer.norm == 'scaled_filter' else 1)
        out[b, y, xx, h] = weights @ torch.stack(values)
    return layer.post_proj(out.flatten(-2)[:, :H, :W])


def make(terms=TERMS, dim=4, heads=2, **settings) -> LocalAttention:
    """A layer in float64 whose tables matter."""
    layer = LocalAttention(dim, heads, terms=terms, **settings).double().eval()
    for table in (layer.rk, layer.rq, layer.rb):
        if table is not None:
            torch.nn.init.normal_(table)
    return layer


@pytest.mark.parametrize('terms', COMBINATIONS, ids='+'.join)
@pytest.mark.parametrize('area', ['window', 'neighbours'])
def test_terms(terms, area):
    """Every combination of terms is equation 4, in shifted windows and in neighbourhoods, on a map of odd sides."""
    layer = make(terms, area=area, window_size=3, kernel_size=3, shift=1)
    x = torch.randn(1, 5, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_hand(layer, x))


@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('area', ['window', 'neighbours'])
def test_norms_and_tables(norm, area):
    """All norms, in shifted windows and in neighbourhoods, and both readings of the tables."""
    for tables in ({}, dict(shared_tables=True, scale_tables=True)):
        layer = make(area=area, norm=norm, window_size=2, kernel_size=3, shift=1, **tables)
        x = torch.randn(1, 3, 4, 4, dtype=torch.float64)
        torch.testing.assert_close(layer(x), by_hand(layer, x))


@pytest.mark.parametrize('shift', [0, 3])
def test_is_window_attention(shift):
    """With the terms of Swin it starts from the weights of window attention and computes the same."""
    layer, swin = (cls(12, 3, shift=shift) for cls in (LocalAttention, WindowAttention))
    layer.load_state_dict(layer.warm_start(swin.state_dict(), ''))
    x = torch.randn(2, 9, 15, 12)
    torch.testing.assert_close(layer(x), swin(x))


@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('area', ['window', 'neighbours'])
def test_half_precision(norm, area):
    """bfloat16 is near float64, also under autocast, and gradients are finite."""
    layer, x = make(dim=16, area=area, norm=norm, shift=3), torch.randn(2, 9, 8, 16, dtype=torch.float64)
    exact = layer(x)
    with torch.autocast('cpu', torch.bfloat16):
        mixed = layer.float()(x.float())
    layer = layer.bfloat16()
    half = layer(x.bfloat16())
    half.sum().backward()
    assert half.dtype == mixed.dtype == torch.bfloat16 and all(p.grad.isfinite().all() for p in layer.parameters())
    for out in (half, mixed):
        assert (out - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize('area, norm', [('window', 'filter'), ('neighbours', 'softmax'), ('neighbours', 'filter')])
def test_attention_dropout_only_in_training(area, norm):
    layer, x = LocalAttention(4, 1, area=area, norm=norm, attn_drop_rate=0.5), torch.randn(1, 5, 5, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.usefixtures('torch_compiles')
@pytest.mark.parametrize(
    'area, norm, backend',
    [
        ('window', 'softmax', 'eager'),  # the graph as it is found
        pytest.param('window', 'softmax', 'aot_eager', marks=pytest.mark.slow),  # with the graph of its gradients
        pytest.param('window', 'identity', 'aot_eager', marks=pytest.mark.slow),
        pytest.param('neighbours', 'softmax', 'aot_eager', marks=pytest.mark.slow),
        pytest.param('neighbours', 'identity', 'aot_eager', marks=pytest.mark.slow),
    ],
)
def test_compiled(area, norm, backend):
    """One graph serves maps of any size, with the gradients of eager mode."""
    layer = make(area=area, norm=norm, window_size=3, kernel_size=3, shift=1, shift_small_maps=False)
    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for H, W in ((7, 8), (4, 9)):
        x = torch.randn(1, H, W, 4, dtype=torch.float64, requires_grad=True)
        out, expected = compiled(x), layer(x)
        torch.testing.assert_close(out, expected)
        grads = (torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) for y in (out, expected))
        for ours, eager in zip(*grads):
            torch.testing.assert_close(ours, eager)


def test_settings_show_what_tensors_do_not():
    """Layers whose tensors have the same shapes differ in their settings."""
    layers = [
        LocalAttention(4, 2, **change)
        for change in (
            dict(terms=['qk']),
            dict(terms=['qk'], window_size=5),
            dict(terms=['qk'], area='neighbours'),
            dict(terms=['qk'], norm='filter'),
        )
    ]
    layers.append(LocalAttention(4, 1, terms=['qk']))
    assert len({str(layer.settings) for layer in layers}) == len(layers)
