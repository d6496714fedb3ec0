import torch

from mmattn.layers import Convolution


def test_convolution():
    """The sum over neighbours, each through a matrix of its offset; zero outside the map; and the bias."""
    layer = Convolution(3, kernel_size=3)
    x = torch.randn(2, 4, 5, 3)
    expected = layer.bias.expand(2, 4, 5, 3).clone()
    for y in range(4):
        for x_ in range(5):
            for i, j in ((i, j) for i in range(3) for j in range(3)):
                if 0 <= y + i - 1 < 4 and 0 <= x_ + j - 1 < 5:
                    expected[:, y, x_] += x[:, y + i - 1, x_ + j - 1] @ layer.weight[:, :, i, j].T
    torch.testing.assert_close(layer(x), expected)
