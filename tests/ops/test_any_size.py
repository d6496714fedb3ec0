import pytest
import torch
import torch.nn.functional as F

from mmattn.ops.any_size import average_pool, distances


@pytest.mark.parametrize('size', [(4, 6), (5, 6), (1, 7)], ids=str)
def test_average_pool_is_that_of_a_gpu(size):
    """The CPU adds rows and columns. A GPU has torch's pooling, with these arguments: an odd last row is alone."""
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    pooled = average_pool(x), F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(*pooled)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in pooled))


@pytest.mark.parametrize('size, count', [(6, 3), (7, 3), (8, 3), (5, 5), (1, 1)])
def test_distances(size, count):
    """Each is that of a pixel from the middle of its pool in adaptive pooling. Places of neighbouring pixels are
    neighbours, also where pools differ in length: the C++ code then reads them as vectors."""
    distance, place = distances(size, count, False, None)
    pools = [[x for x in range(size) if j * size // count <= x < -(-(j + 1) * size // count)] for j in range(count)]
    middles = torch.tensor([(pool[0] + pool[-1]) / 2 for pool in pools])
    assert torch.equal(distance[place], torch.arange(size)[:, None] - middles)
    assert torch.equal(place[1:], place[:-1] + 1)
