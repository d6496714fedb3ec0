import math

import pytest
import torch

from mmattn.backbones import ELSASwin
from mmattn.layers import ELSA
from mmattn.ops import neighbourhood_sum


def test_reference_has_second_derivatives():
    """The reference of a backbone is that of all its operators: none of them is compiled code."""
    backbone = ELSASwin(
        dict(embed_dim=8, depths=(1,), num_heads=(1,), group_width=4), elsa_stages=(0,), out_indices=(0,)
    )
    backbone.set_backend('reference')
    x = torch.randn(1, 3, 32, 32, requires_grad=True)
    (first,) = torch.autograd.grad(backbone(x)[0].square().sum(), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad.abs().sum() > 0


def test_ghost_matrices_enter_as_equation_8_says():
    """The multiplier comes first and is raised to lambda; the summand is scaled by gamma."""
    layer = ELSA(6, 2, kernel_size=3, group_width=2, lam=2, gamma=0.5)
    layer.ghost_head.data[0], layer.ghost_head.data[1] = 3.0, 4.0
    mul, add = layer._ghost_matrices()
    assert (mul == 9).all() and (add == 2).all() and mul.shape == add.shape == (6, 3, 3)


@pytest.mark.parametrize('tap_major', [False, True])
def test_projection_to_logits_is_called(tap_major):
    """Hooks on it, on the layers before it and on all of them run, whatever the layout of the logits, and what they
    return counts; so does a module in its place, as LoRA's."""
    layer = ELSA(12, 2, kernel_size=3, group_width=4)
    x, conv = torch.randn(2, 4, 5, layer.dim_qk), layer.attn[-1]
    plain, called = layer._logits(x, tap_major), []
    for module in (layer.attn, layer.attn[0], conv):
        module.register_forward_hook(lambda module, _, out: called.append((module, out.shape)))
    hook = conv.register_forward_hook(lambda *given: 2 * given[-1])
    torch.testing.assert_close(layer._logits(x, tap_major), 2 * plain)
    assert called == [(module, (2, 4, 5, n)) for module, n in ((layer.attn[0], 8), (conv, 18), (layer.attn, 18))]
    hook.remove()

    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.down, self.up = conv, type(conv)(8, 2, 1, bias=False), type(conv)(2, 18, 1, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    layer.attn[-1] = adapted = Adapted()
    merged = conv.weight + (adapted.up.weight.flatten(1) @ adapted.down.weight.flatten(1)).view_as(conv.weight)
    found = layer._logits(x, tap_major)
    layer.attn[-1] = conv
    conv.weight.data = merged.data
    torch.testing.assert_close(found, layer._logits(x))
    assert not tap_major or found.stride() == layer._logits(x, True).stride() == (2 * 9 * 20, 5, 1, 9 * 20, 20)


def test_reach():
    """A pixel depends on pixels up to k // 2 * dilation away, through the convolution of the logits and through the
    sum, and on no others."""
    layer = ELSA(4, 1, kernel_size=3, dilation=2, group_width=2).double()
    x = torch.randn(1, 9, 9, 4, dtype=torch.float64, requires_grad=True)
    layer(x)[0, 4, 4].sum().backward()
    reached = (x.grad[0].abs().sum(-1) > 0).nonzero()
    assert reached.min(0).values.tolist() == [2, 2] and reached.max(0).values.tolist() == [6, 6]
    assert len(reached) == 9  # on the dilated grid only


def equation_7(layer, p):
    """The softmax of equation 7, one pixel, head and neighbour at a time: (B, H, W, heads, k * k)."""
    B, H, W, d = p.shape
    rk, rq = (layer.attn[name].weight[:, :, 0, 0].t().unflatten(1, (layer.num_heads, -1)) for name in ('rk', 'rq'))
    rb = layer.attn['rk'].bias.unflatten(0, (layer.num_heads, -1))
    heads, taps = rb.shape
    k = math.isqrt(taps)
    logits = p.new_zeros(B, H, W, heads, taps)
    for b, y, x, h, j in torch.cartesian_prod(*map(torch.arange, (B, H, W, heads, taps))).tolist():
        yy, xx = (n + layer.dilation * (o - k // 2) for n, o in ((y, j // k), (x, j % k)))
        logits[b, y, x, h, j] = p[b, y, x] @ rk[:, h, j] + rb[h, j]
        if 0 <= yy < H and 0 <= xx < W:
            logits[b, y, x, h, j] += rq[:, h, j] @ p[b, yy, xx]
    return logits.softmax(-1)


@pytest.mark.parametrize('dilation', [1, 2])
@pytest.mark.parametrize('kernel_size', [3, 5])
def test_equation_7_as_written(dilation, kernel_size):
    """The strict form is equation 7; then comes the sum."""
    layer = ELSA(6, 2, kernel_size=kernel_size, dilation=dilation, group_width=2, gamma=0, hadamard='equation').double()
    for table in layer.attn.parameters():
        torch.nn.init.normal_(table)
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    q, k, v = layer.pre_proj(x).split((layer.dim_qk, layer.dim_qk, 6), -1)
    expected = equation_7(layer, q * k)
    torch.testing.assert_close(layer(x), layer.post_proj(neighbourhood_sum(expected, v, None, dilation)))
