import pytest
import torch

from mmattn.layers import ELSA


@pytest.mark.parametrize(
    'lam, gamma, shape', [(0, 1, (1, 6, 3, 3)), (1, 0, (1, 6, 3, 3)), (2, 1, (2, 1, 6, 3, 3)), (0, 0, None)]
)
def test_ghost_head_has_the_released_shape(lam, gamma, shape):
    """lambda and gamma decide which matrices of equation 8 exist; they are one tensor, as released."""
    layer = ELSA(6, 2, kernel_size=3, group_width=2, lam=lam, gamma=gamma)
    assert (layer.ghost_head is None) if shape is None else (layer.ghost_head.shape == shape)


def test_ghost_matrices_enter_as_equation_8_says():
    """The multiplier comes first and is raised to lambda; the summand is scaled by gamma."""
    layer = ELSA(6, 2, kernel_size=3, group_width=2, lam=2, gamma=0.5)
    layer.ghost_head.data[0], layer.ghost_head.data[1] = 3.0, 4.0
    mul, add = layer._ghost_matrices()
    assert (mul == 9).all() and (add == 2).all() and mul.shape == add.shape == (6, 3, 3)


@pytest.mark.parametrize('dim, group_width, dim_qk', [(96, 4, 64), (96, 8, 64), (128, 8, 88), (16, 4, 12)])
def test_query_and_key_channels(dim, group_width, dim_qk):
    """dim // 3 * 2, rounded up to whole groups: 88 for the first stage of Base."""
    assert ELSA(dim, 4, group_width=group_width).dim_qk == dim_qk


def test_reach():
    """A pixel depends on pixels up to k // 2 * dilation away, through the convolution of the logits and through the
    sum, and on no others."""
    layer = ELSA(4, 1, kernel_size=3, dilation=2, group_width=2).double()
    x = torch.randn(1, 9, 9, 4, dtype=torch.float64, requires_grad=True)
    layer(x)[0, 4, 4].sum().backward()
    reached = (x.grad[0].abs().sum(-1) > 0).nonzero()
    assert reached.min(0).values.tolist() == [2, 2] and reached.max(0).values.tolist() == [6, 6]
    assert len(reached) == 9  # on the dilated grid only


def test_attention_dropout_only_in_training():
    layer = ELSA(4, 1, kernel_size=3, group_width=2, attn_drop_rate=0.5)
    x = torch.randn(1, 5, 5, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
