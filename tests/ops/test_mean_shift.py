from functools import partial

import pytest
import torch

from mmattn.ops.mean_shift import mean_shift_attention, mean_shift_by_landmarks, mean_shift_steps
from tests.ops.measuring import TensorSizes

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


@pytest.mark.parametrize('trains', [True, False])
def test_no_score_matrix(trains):
    """Without a bias, no tensor is as large as the N x M logits, in inference, forward or backward."""
    inputs = [t.float().requires_grad_() for t in make_inputs(1, 2, 512, 512, 8) if t is not None]
    with TensorSizes() as sizes, torch.set_grad_enabled(trains):
        out = mean_shift_attention(*inputs)
        if trains:
            out.sum().backward()
    assert max(sizes.found) <= 2 * 512 * 16


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


def test_landmarks_are_nystroms():
    """The three factors as they are written, with the softmaxes of the reference."""
    q, k, v, p, _ = make_inputs(2, 2, 7, 9, 4)
    c = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    kernel = (-torch.cdist(c, c).square() / 2 / 4**0.5).exp() + 1e-3 * torch.eye(5)
    middle = torch.linalg.inv(kernel) @ torch.diag_embed(kernel.sum(-1))
    to_landmarks, to_keys = ((-torch.cdist(a, b).square() / 2 / 4**0.5).softmax(-1) for a, b in ((q, c), (c, k)))
    out = mean_shift_by_landmarks(q, k, v, p, landmarks=c)
    torch.testing.assert_close(out, to_landmarks @ middle @ to_keys @ v - p)


def test_more_landmarks_are_nearer():
    """On 256 tokens that lie on a surface, as those of a map do, the distance from the exact form falls with the number
    of landmarks, to nearly nothing where the landmarks are the keys. All weights of a query sum to 1, also far away
    from every landmark."""
    place = torch.cartesian_prod(torch.linspace(0, 3, 16), torch.linspace(0, 3, 16)).double()
    q, k, v = (torch.sin(place @ torch.randn(2, 8, dtype=torch.float64)).view(1, 1, 256, 8) for _ in range(3))
    exact, off = mean_shift_attention(q, k, v), []
    for side in (2, 4, 8, 16):
        cells = k.view(side, 16 // side, side, 16 // side, 8).mean((1, 3)).view(1, 1, -1, 8)
        off.append(((mean_shift_by_landmarks(q, k, v, landmarks=cells) - exact).norm() / exact.norm()).item())
    assert off == sorted(off, reverse=True) and off[0] > 0.05 and off[-1] < 2e-3
    far = mean_shift_by_landmarks(100 + q, k, torch.ones_like(v), landmarks=cells)
    torch.testing.assert_close(far, torch.ones_like(far))


def test_gradients_through_landmarks():
    """Also those of equal landmarks, whose kernel has no inverse without the ridge."""
    q, k, v, p, _ = make_inputs(1, 2, 3, 4, 3)
    c = torch.randn(1, 2, 2, 3, dtype=torch.float64).repeat(1, 1, 2, 1)
    inputs = [t.requires_grad_() for t in (q, k, v, p, c)]
    assert torch.autograd.gradcheck(lambda *x: mean_shift_by_landmarks(*x[:4], landmarks=x[4]), inputs)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_landmarks_in_half_precision(dtype):
    q, k, v, p, _ = (None if t is None else t.to(dtype) for t in make_inputs(1, 2, 64, 64, 8))
    out = mean_shift_by_landmarks(q, k, v, p, landmarks=k[:, :, ::4])
    exact = mean_shift_by_landmarks(q.double(), k.double(), v.double(), p.double(), landmarks=k[:, :, ::4].double())
    assert out.dtype == dtype and (out - exact).abs().max() < 32 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize('steps, size', [(1, 0.5), (3, 1.0), (4, 0.3)])
def test_steps(steps, size):
    """Query and probe move by their shifts, of one query's weights. If keys are values and queries are probes, all is
    mean shift: the probe moves where the query moves."""
    q, k, v, p, _ = make_inputs(2, 2, 5, 6, 3)
    query, probe = q, p
    for _ in range(steps):
        weights = (-torch.cdist(query, k).square() / 2 / 3**0.5).softmax(-1)
        probe = probe + size * (weights @ v - probe)
        query = query + size * (weights @ k - query)
    torch.testing.assert_close(mean_shift_steps(mean_shift_attention, q, k, v, p, steps, size), probe - p)
    torch.testing.assert_close(mean_shift_steps(mean_shift_attention, q, k, k, q, steps, size), query - q)


def test_one_step_is_equation_12():
    """To the bit: the paper's model does not change."""
    q, k, v, p, _ = make_inputs(1, 2, 5, 6, 3, dtype=torch.float32)
    assert torch.equal(mean_shift_steps(mean_shift_attention, q, k, v, p, 1, 1.0), mean_shift_attention(q, k, v, p))
