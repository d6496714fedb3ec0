import pytest
import torch
import torch.nn.functional as F

from mmattn.ops.any_size import average_pool


@pytest.mark.parametrize('size', [(4, 6), (5, 6), (1, 7)], ids=str)
def test_average_pool_is_that_of_a_gpu(size):
    """The CPU adds rows and columns. A GPU has torch's pooling, with these arguments: an odd last row is alone."""
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    pooled = average_pool(x), F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(*pooled)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in pooled))
