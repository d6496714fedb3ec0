import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from mmattn.layers import GroupedLinear, MeanShiftAttention, MeanShiftWindowAttention, WindowAttention
from mmattn.ops.windows import relative_bias

# tables 1 (with probe) and 2 (without)
TABLE_1 = [
    'QQQQQ', 'QKKQQ', 'QQVVV', 'QQVVQ', 'QQQPP', 'QKKKQ', 'QKKQK', 'QKKKW', 'QKKQW',
    'QKKPP', 'QKKPQ', 'QQVPW', 'QKKPW', 'QKVVW', 'QKVPP', 'QKVQW', 'QKVPQ', 'QKVPW',
]  # fmt: skip
TABLE_2 = ['QQQQ', 'QKKQ', 'QQQW', 'QQVQ', 'QQVV', 'QQVW', 'QKKW', 'QKVV', 'QKVW']


def dense_projection(layer):
    return layer.pre_proj.dense_weight() if isinstance(layer.pre_proj, GroupedLinear) else layer.pre_proj.weight


def by_hand(layer, x):
    """Equations 1, 12 and 14, head by head. Rows of a matrix are the channels of heads: x M^T projects in, z M back."""
    C, heads = x.shape[-1], layer.num_heads
    matrices = dict(zip(dict.fromkeys(layer.sharing[:-1]), dense_projection(layer).split(C)))
    if layer.post_proj is not None:
        matrices[layer.sharing[-1]] = layer.post_proj.weight.t()
    Q, K, V, *P, W = (matrices[letter] for letter in layer.sharing)
    tokens = x.flatten(1, 2)
    out = 0
    for h in range(heads):
        rows = slice(h * C // heads, (h + 1) * C // heads)
        q, k, v = (tokens @ M[rows].t() for M in (Q, K, V))
        logits = q @ k.transpose(1, 2) if layer.form == 'plain' else -torch.cdist(q, k).square() / 2
        z = (logits / (C // heads) ** 0.5).softmax(-1) @ v
        if layer.form == 'msf':
            z = z - tokens @ P[0][rows].t()
        out = out + z @ W[rows]
    if layer.form == 'residual':
        out = out - tokens @ P[0].t()
    return out.view(x.shape)


@pytest.mark.parametrize(
    'form, sharing',
    [
        *(('msf', row) for row in TABLE_1),
        *(('plain', row) for row in TABLE_2),
        *(('residual', row) for row in ('QKVPW', 'QKVVW')),
        *(('gauss', row) for row in ('QKVW', 'QKKQ')),
    ],
)
@pytest.mark.parametrize('groups, mode', [(1, 'interleaved'), (2, 'interleaved'), (4, 'interleaved'), (2, 'block')])
def test_every_form_is_its_equation(form, sharing, groups, mode):
    """Tables 1 to 4: the shared matrices, the kernel, the place of the probe, and the number of matrices."""
    layer = MeanShiftAttention(12, 3, form=form, sharing=sharing, groups=groups, group_mode=mode).double()
    x = torch.randn(2, 3, 2, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_hand(layer, x))
    projections = len(set(sharing[:-1])) / groups + (sharing[-1] not in sharing[:-1])
    assert sum(p.numel() for p in layer.parameters()) == projections * 144


@given(
    groups=st.integers(1, 4),
    width=st.integers(1, 3),
    outputs=st.integers(1, 3),
    projections=st.integers(1, 3),
    bias=st.booleans(),
    mode=st.sampled_from(['interleaved', 'block']),
)
@example(groups=3, width=2, outputs=2, projections=3, bias=True, mode='interleaved')
@example(groups=2, width=3, outputs=3, projections=2, bias=False, mode='block')
def test_groups(groups, width, outputs, projections, bias, mode):
    """In each projection, output channel e * G + g, or g * E / G + e in blocks, is computed from the channels of group
    g. Its row of the weight is where the release has it, for any number of fused projections."""
    layer = GroupedLinear(groups * width, projections * groups * outputs, groups, mode, bias, projections).double()
    x = torch.randn(2, groups * width, dtype=torch.float64)
    out = layer(x)
    for g, p, e in itertools.product(range(groups), range(projections), range(outputs)):
        channel = p * groups * outputs + (e * groups + g if mode == 'interleaved' else g * outputs + e)
        row = layer.weight[(g * projections + p) * outputs + e]
        expected = x[:, g * width : (g + 1) * width] @ row
        torch.testing.assert_close(out[:, channel], expected + (layer.bias[channel] if bias else 0))
    torch.testing.assert_close(F.linear(x, layer.dense_weight(), layer.bias), out)


@pytest.mark.parametrize('mode', ['interleaved', 'block'])
def test_nearest_groups(mode):
    """The nearest grouped matrix has all numbers of the dense one that no group forces to be zero. One that is grouped
    already is its own nearest."""
    layer = GroupedLinear(12, 24, 3, mode, projections=2).requires_grad_(False)
    torch.testing.assert_close(layer.nearest(layer.dense_weight()), layer.weight, rtol=0, atol=0)
    free = layer.dense_weight() != 0
    dense = torch.randn(24, 12)
    layer.weight.copy_(layer.nearest(dense))
    assert free.sum() == 24 * 12 / 3
    assert torch.equal(layer.dense_weight(), dense * free)


def test_steps_of_a_layer():
    """Each head moves its queries and probes, and the weight projects back how far the probes moved. Row b of table 1
    is equation 11: then queries are the probes."""
    layer = MeanShiftAttention(12, 3, sharing='QKKQQ', steps=3, step_size=0.6).double()
    x = torch.randn(1, 2, 4, 12, dtype=torch.float64)
    start, keys = (part.view(8, 3, 4).transpose(0, 1) for part in layer.pre_proj(x).chunk(2, -1))
    q = start
    for _ in range(3):
        q = q + 0.6 * ((-torch.cdist(q, keys).square() / 2 / 2).softmax(-1) @ keys - q)
    moved = (q - start).transpose(0, 1).reshape(x.shape)
    torch.testing.assert_close(layer(x), moved @ layer.pre_proj.weight[:12])


@pytest.mark.parametrize('prefix', [0, 2])
def test_landmarks_of_a_layer(prefix):
    """They are the prefix's keys and the means of the map's, row by row. As many as there are keys are nearly exact."""
    layer = MeanShiftAttention(8, 2, landmarks=3).double()
    x, tokens = torch.randn(1, 6, 9, 8, dtype=torch.float64), torch.randn(1, prefix, 8, dtype=torch.float64)
    k = torch.cat((tokens, x.flatten(1, 2)), 1).unflatten(-1, (2, 4)).transpose(1, 2)
    expected = [k[:, :, i] for i in range(prefix)]
    expected += [
        x[:, 2 * i : 2 * i + 2, 3 * j : 3 * j + 3].mean((1, 2)).view(1, 2, 4) for i in range(3) for j in range(3)
    ]
    torch.testing.assert_close(layer._landmarks(k, x.shape[1:3]), torch.stack(expected, 2))
    given = (x, tokens) if prefix else (x,)
    layer.landmarks = 0
    exact = layer(*given)
    layer.landmarks = 18  # each cell has one key
    torch.testing.assert_close(layer(*given), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize('form, sharing', [('msf', None), ('plain', None), ('msf', 'QKKQW')])
def test_blocks_are_of_heads(form, sharing):
    """Figure 2a: within each of query, key, value and probe, one half of the heads reads one half of the channels. So
    without the output projection, each half of the heads depends on its own half of the channels alone."""
    layer = MeanShiftAttention(8, 4, form=form, sharing=sharing, groups=2, group_mode='block')
    layer.post_proj = torch.nn.Identity()
    x = torch.randn(1, 5, 8, requires_grad=True)
    for half, other in ((slice(4), slice(4, 8)), (slice(4, 8), slice(4))):
        (grad,) = torch.autograd.grad(layer(x)[..., half].square().sum(), x)
        assert (grad[..., half] != 0).all() and (grad[..., other] == 0).all()


@pytest.mark.parametrize('form', ['msf', 'residual', 'gauss', 'plain'])
def test_head_ignores_a_constant_in_queries_and_keys(form):
    """The paper's claim, for a layer: equal biases of query and key change only the plain kernel."""
    layer = MeanShiftAttention(8, 2, form=form, proj_bias=True).double()
    x = torch.randn(1, 3, 3, 8, dtype=torch.float64)
    before = layer(x)
    constant = torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0, -2.0, 1.0, 5.0], dtype=torch.float64)
    layer.pre_proj.bias.data[:16] += constant.repeat(2)
    moved = (layer(x) - before).abs().max()
    assert moved > 1e-3 if form == 'plain' else moved < 1e-9


@given(H=st.integers(1, 9), W=st.integers(1, 9), w=st.integers(2, 4), shifted=st.booleans(), B=st.integers(1, 2))
@example(H=5, W=9, w=3, shifted=True, B=2)
def test_plain_windows_are_swins(H, W, w, shifted, B):
    """The plain form in windows computes what WindowAttention computes; its projections are in another order."""
    settings = dict(window_size=w, shift=w // 2 if shifted else 0)
    swin = WindowAttention(8, 2, **settings).double()
    layer = MeanShiftWindowAttention(8, 2, **settings, form='plain', proj_bias=True).double()
    torch.nn.init.normal_(swin.relative_position_bias_table)
    layer.relative_position_bias_table.data.copy_(swin.relative_position_bias_table)
    for kind in ('weight', 'bias'):
        getattr(layer.attn.pre_proj, kind).data.copy_(getattr(swin.qkv, kind).data)
    layer.attn.post_proj.load_state_dict(swin.proj.state_dict())
    x = torch.randn(B, H, W, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), swin(x))


def test_windows_shift_means():
    """In a window, the logits are the kernel plus the relative position bias."""
    layer = MeanShiftWindowAttention(4, 1, window_size=2).double()
    torch.nn.init.normal_(layer.relative_position_bias_table)
    x = torch.randn(1, 2, 2, 4, dtype=torch.float64)
    q, k, v, p = layer.attn.pre_proj(x).view(4, 16).chunk(4, -1)
    logits = -torch.cdist(q, k).square() / 4 + relative_bias(layer.relative_position_bias_table.t().flip(1), 2)[0]
    torch.testing.assert_close(layer(x).view(4, 4), layer.attn.post_proj(logits.softmax(-1) @ v - p))


@pytest.mark.parametrize(
    'settings',
    [dict(drop_rate=0.5), dict(form='plain', attn_drop_rate=0.5), dict(landmarks=2, attn_drop_rate=0.5)],
    ids=str,
)
def test_dropouts_only_in_training(settings):
    """test_token_mixer.py has the default form."""
    layer, x = MeanShiftAttention(8, 2, **settings), torch.randn(1, 5, 5, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
