import pytest
import torch

from mmattn.ops.transpose import transposed


@pytest.mark.parametrize('shape', [(1, 64, 128), (3, 61, 67), (2, 1, 5), (1, 0, 4), (0, 2, 3)])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.int64])
def test_copy_is_that_of_torch(shape, dtype):
    """Large matrices, which torch copies in blocks, small ones, views and empty ones."""
    x = torch.randn(shape).mul(100).to(dtype)
    for given in (x, x.mT, x[:, ::2]):
        out = transposed(given)
        assert out.equal(given.mT) and out.is_contiguous() and (not x.numel() or out.data_ptr() != x.data_ptr())


def test_derivatives():
    """First, second and forward derivatives; and the gradient is a copy, too."""
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(transposed, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(transposed, x)
    (grad,) = torch.autograd.grad(transposed(x), x, torch.randn(2, 4, 3, dtype=torch.float64))
    assert grad.is_contiguous()
