import pytest
import torch
import torch.nn.functional as F

from mmattn.ops import attention


@pytest.mark.parametrize('dtype, error', [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize('samples, heads', [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_a_trained_bias_changes_nothing_but_the_path(monkeypatch, samples, heads, dtype, error):
    """Without torch's operator, the result and all gradients are those of the softmax as it is written, in float64."""
    inputs = [torch.randn(3, 2, n, d).transpose(1, 2).contiguous().transpose(1, 2) for n, d in ((5, 4), (7, 4), (7, 3))]
    inputs = [x.to(dtype).requires_grad_() for x in (*inputs, torch.randn(samples, heads, 5, 7))]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    with monkeypatch.context() as patch:
        patch.setattr(F, 'scaled_dot_product_attention', None)
        out = attention(*inputs, scale=0.75)
    q, k, v, bias = exact
    wanted = (0.75 * q @ k.mT + bias).softmax(-1) @ v
    grad = torch.randn(out.shape, dtype=dtype)
    given = (out, *torch.autograd.grad(out, inputs, grad))
    for got, right in zip(given, (wanted, *torch.autograd.grad(wanted, exact, grad.double()))):
        assert got.dtype == dtype and (got.double() - right).abs().max() <= error * max(1, right.abs().max())


def test_dropout_of_a_trained_bias():
    """It drops weights, with the rate that is given, and enlarges the others."""
    q, bias = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 1000, requires_grad=True)
    weights = attention(q, torch.ones(1, 1, 1000, 8), torch.eye(1000)[None, None], bias, 0.2)
    assert 0.17 < weights.eq(0).double().mean() < 0.23
    torch.testing.assert_close(weights.max().item(), 1 / 800)


@pytest.mark.parametrize('backend', ['reference', 'fused'])
@pytest.mark.parametrize('biased', [False, True], ids=['plain', 'biased'])
def test_equation_1(backend, biased):
    """One query and head at a time: a softmax of products by the root of the width, plus the bias."""
    q, k, v = (torch.randn(2, 3, n, d, dtype=torch.float64) for n, d in ((5, 4), (7, 4), (7, 2)))
    bias = torch.randn(1, 3, 5, 7, dtype=torch.float64) if biased else None
    out = attention(q, k, v, bias, backend=backend)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (2, 3, 5))).tolist():
        logits = k[b, h] @ q[b, h, i] / 2 + (bias[0, h, i] if biased else 0)
        torch.testing.assert_close(out[b, h, i], logits.softmax(0) @ v[b, h])
