from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mmattn.ops.mean_shift import flex_attention, mean_shift_attention

REFERENCE, CHANNELS, EXPORTED, BIAS = PATHS = [
    partial(mean_shift_attention, backend=name) for name in ('reference', 'channels', 'exported', 'bias')
]


def make_inputs(B, heads, N, M, d, probe=True, bias=False, dtype=torch.float64):
    q, k, v = (torch.randn(B, heads, n, d, dtype=dtype) for n in (N, M, M))
    return [q, k, v, torch.randn_like(q) if probe else None, torch.randn(1, heads, N, M, dtype=dtype) if bias else None]


@pytest.mark.parametrize('path', PATHS)
@pytest.mark.parametrize('bias', [False, True])
def test_equation_12(path, bias):
    """Every path computes the paper's bracket, one query and key at a time."""
    q, k, v, p, b = make_inputs(2, 2, 3, 4, 5, bias=bias)
    out = path(q, k, v, p, b)
    for n, h, i in torch.cartesian_prod(*map(torch.arange, out.shape[:3])).tolist():
        logits = torch.stack(
            [-((k[n, h, j] - q[n, h, i]).norm() ** 2) / 2 / 5**0.5 + (b[0, h, i, j] if bias else 0) for j in range(4)]
        )
        expected = sum(w * v[n, h, j] for j, w in enumerate(logits.softmax(0))) - p[n, h, i]
        torch.testing.assert_close(out[n, h, i], expected)


@given(
    B=st.integers(1, 2),
    heads=st.integers(1, 3),
    N=st.integers(1, 20),
    M=st.integers(1, 20),
    d=st.integers(1, 17),
    probe=st.booleans(),
    bias=st.booleans(),
)
@example(B=2, heads=3, N=5, M=7, d=9, probe=True, bias=True)
@example(B=1, heads=2, N=20, M=6, d=4, probe=False, bias=False)
def test_paths_agree(B, heads, N, M, d, probe, bias):
    """The fast paths and their gradients equal the reference's at any size."""
    inputs = make_inputs(B, heads, N, M, d, probe, bias)
    given_inputs = [t.requires_grad_() for t in inputs if t is not None]
    grad = torch.randn(B, heads, N, d, dtype=torch.float64)
    reference, *fast = [
        (out, *torch.autograd.grad(out, given_inputs, grad)) for out in (path(*inputs) for path in PATHS)
    ]
    for results in fast:
        for a, b in zip(results, reference):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize('path', PATHS)
def test_gradcheck(path):
    """Gradients are right, also of the key norm, which one path differentiates in one of its two parts only."""
    inputs = [t.requires_grad_() for t in make_inputs(1, 2, 3, 4, 3, bias=path is not CHANNELS) if t is not None]
    assert torch.autograd.gradcheck(path, inputs)


@pytest.mark.skipif(flex_attention is None, reason=f'torch {torch.__version__} has no FlexAttention')
@pytest.mark.parametrize('shape', [None, (1, 2), (3, 1)])
def test_flex_attention(monkeypatch, shape):
    """It gives the reference's output and gradients, also those of norms and bias, for every form of bias."""
    # On the CPU, torch has the backward pass and refuses it.
    monkeypatch.setattr('torch.nn.attention.flex_attention._validate_device', lambda *_: None)
    inputs = make_inputs(3, 2, 5, 7, 4, probe=shape is None)
    inputs[4] = torch.randn(*shape, 5, 7, dtype=torch.float64) if shape else None
    given_inputs = [t.requires_grad_() for t in inputs if t is not None]
    outs = REFERENCE(*inputs), mean_shift_attention(*inputs, backend='flex')
    grad = torch.randn_like(outs[0])
    expected, results = ((out, *torch.autograd.grad(out, given_inputs, grad)) for out in outs)
    for a, b in zip(results, expected):
        torch.testing.assert_close(a, b)


@pytest.mark.skipif(flex_attention is None, reason=f'torch {torch.__version__} has no FlexAttention')
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_flex_attention_in_half_precision(dtype):
    """Key norms are not rounded, and do not overflow."""
    q, k, v, p, _ = make_inputs(1, 2, 9, 9, 64)
    q, k, v, p = (t.to(dtype) for t in (1e3 * q, 1e3 * k, v, p))
    out = mean_shift_attention(q, k, v, p, backend='flex')
    exact = REFERENCE(q.double(), k.double(), v.double(), p.double())
    assert out.dtype == dtype and (out - exact).abs().max() < 8 * torch.finfo(dtype).eps * exact.abs().max()


def test_flex_attention_says_what_it_lacks(monkeypatch):
    q, k, v, _, _ = make_inputs(1, 1, 3, 3, 4)
    if flex_attention is not None:
        with pytest.raises(ValueError, match=r"backend 'flex' needs dropout_p=0, not 0.1: choose 'channels'"):
            mean_shift_attention(q, k, v, dropout_p=0.1, backend='flex')
    monkeypatch.setattr('mmattn.ops.mean_shift.flex_attention', None)
    with pytest.raises(ValueError, match=r"backend 'flex' needs torch 2.6 or newer, not .*: choose 'channels'"):
        mean_shift_attention(q, k, v, backend='flex')


@pytest.mark.parametrize('path', PATHS)
def test_a_constant_added_to_queries_and_keys_changes_nothing(path):
    """Section 2.2.2: only differences of queries and keys matter, unlike with the plain kernel."""
    q, k, v, p, _ = make_inputs(2, 3, 6, 6, 4)
    constant = 3 * torch.randn(1, 3, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(path(q + constant, k + constant, v, p), path(q, k, v, p))
    plain = torch.nn.functional.scaled_dot_product_attention
    assert (plain(q + constant, k + constant, v) - plain(q, k, v)).abs().max() > 0.1


def test_no_score_matrix():
    """Without a bias, no tensor is as large as the N x M logits, forward or backward."""
    sizes = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in torch.utils._pytree.tree_flatten(out)[0] if isinstance(t, torch.Tensor))
            return out

    inputs = [t.float().requires_grad_() for t in make_inputs(1, 2, 512, 512, 8) if t is not None]
    with Record():
        mean_shift_attention(*inputs).sum().backward()
    assert max(sizes) <= 2 * 512 * 16


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e3])
def test_half_precision(dtype, bias, scale):
    """At any scale, results and gradients are finite and near those in float32 for the same rounded inputs: |k|^2
    neither overflows nor loses the digits that matter."""
    inputs = make_inputs(1, 2, 9, 9, 64, bias=bias)
    q, k, v, p = (t.to(dtype).requires_grad_() for t in (scale * inputs[0], scale * inputs[1], *inputs[2:4]))
    b = inputs[4].float().requires_grad_() if bias else None
    out = mean_shift_attention(q, k, v, p, b)
    out.sum().backward()
    assert out.dtype == dtype and all(t.grad.isfinite().all() for t in (q, k, v, p))
    exact = REFERENCE(q.double(), k.double(), v.double(), p.double(), b)
    assert (out - exact).abs().max() < 8 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize('path', PATHS)
def test_dropout_drops_weights(path):
    q, k, v, p, _ = make_inputs(1, 1, 8, 8, 4)
    torch.testing.assert_close(path(q, k, v, p, dropout_p=1.0), -p)


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(key=torch.zeros(1, 2, 3, 5)), 'key and value'),
        (dict(value=torch.zeros(1, 2, 4, 4)), 'key and value'),
        (dict(query=torch.zeros(2, 3, 4)), 'query must be'),
        (dict(probe=torch.zeros(1, 2, 4, 4)), 'probe must be'),
        (dict(bias=torch.zeros(1, 2, 3, 4)), 'bias must be'),
        (dict(bias=torch.zeros(1, 3, 3, 3)), 'bias must be'),
    ],
)
def test_bad_shapes_are_named(change, message):
    arguments = dict(query=torch.zeros(1, 2, 3, 4), key=torch.zeros(1, 2, 3, 4), value=torch.zeros(1, 2, 3, 4))
    with pytest.raises(ValueError, match=message):
        mean_shift_attention(**{**arguments, **change})
