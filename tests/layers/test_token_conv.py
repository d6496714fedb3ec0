import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.layers import Convolution, PatchConv2d
from mmattn.packages import version_numbers


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


@pytest.mark.parametrize('channels', [3, 40])
def test_patches(channels):
    """A token of each patch, with the gradients of torch's convolution, also for a map in another memory order."""
    layer = PatchConv2d(channels, 5, 4).double()
    x = torch.randn(2, channels, 8, 12, dtype=torch.float64, requires_grad=True)
    found, expected = layer(x.permute(0, 2, 3, 1)), F.conv2d(x, layer.weight, layer.bias, stride=4).permute(0, 2, 3, 1)
    torch.testing.assert_close(found, expected)
    given = x, layer.weight, layer.bias
    for one, other in zip(*(torch.autograd.grad(out.square().sum(), given) for out in (found, expected))):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(version_numbers(torch.__version__) < (2, 7), reason='weak references to storages crash torch 2.1')
def test_patches_are_not_kept():
    """Between the forward and the backward pass, only the map, the filters and the result are in memory."""
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.append(weakref.ref(out.untyped_storage()))
            return out

    layer, x = PatchConv2d(8, 5, 4), torch.randn(2, 8, 8, 8, requires_grad=True)
    with Watch():
        out = layer(x)
    kept = {storage.data_ptr() for storage in (reference() for reference in made) if storage and storage.nbytes()}
    assert kept == {part.data_ptr() for part in (out, x, layer.weight)}
