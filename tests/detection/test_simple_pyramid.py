import pytest
import torch
import torch.nn.functional as F

from mmattn.detection import SimpleFeaturePyramid
from mmattn.errors import InputError


@torch.no_grad()
def test_scales():
    """The maps are those of the scales, of the last input alone, each from a norm; further ones are every second
    pixel. A map of odd sides is pooled without its border."""
    neck = SimpleFeaturePyramid(8, 6)
    first, last = torch.randn(2, 1, 8, 5, 7)
    maps = neck((first, last))
    assert [tuple(m.shape) for m in maps] == [(1, 6, h, w) for h, w in ((20, 28), (10, 14), (5, 7), (2, 3), (1, 2))]
    assert all(torch.equal(*pair) for pair in zip(maps, neck((last,))))
    assert torch.equal(maps[4], maps[3][..., ::2, ::2])
    deconvolution, *rest = neck.levels[1]
    x = F.conv_transpose2d(last, deconvolution.weight, deconvolution.bias, 2)
    for layer in rest:
        x = layer(x)
    torch.testing.assert_close(maps[1], x)
    for level in maps[:4]:
        torch.testing.assert_close(level.mean(1), torch.zeros_like(level[:, 0]), atol=1e-5, rtol=0)
    assert [m.shape[2] for m in SimpleFeaturePyramid(8, 6, scales=(2, 1, 0.5), num_outs=4)((last,))] == [10, 5, 2, 1]


@pytest.mark.parametrize(
    'wrong, message',
    [
        (dict(scales=(3,)), 'scales must be a list of 4, 2, 1, 0.5, in this order, not'),
        (dict(scales=(0.5, 1)), 'in this order'),
        (dict(scales=[[1]]), 'in this order'),
        (dict(num_outs=3), 'num_outs must be a whole'),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        SimpleFeaturePyramid(8, **wrong)


def test_too_small_to_be_halved():
    """An image of 16 pixels gives a ViT's map of one pixel."""
    with pytest.raises(InputError, match='cannot halve a map of 1 x 5'):
        SimpleFeaturePyramid(8)((torch.zeros(1, 8, 1, 5),))
    assert len(SimpleFeaturePyramid(8, scales=(2, 1), num_outs=2)((torch.zeros(1, 8, 1, 5),))) == 2


@torch.no_grad()
def test_two_deconvolutions():
    """The largest map has a norm and a GELU between two deconvolutions, as in ViTDet."""
    neck, x = SimpleFeaturePyramid(8, 6), torch.randn(1, 8, 5, 7)
    first, norm, _, second, *rest = neck.levels[0]
    y = F.conv_transpose2d(x, first.weight, first.bias, 2)
    y = F.layer_norm(y.permute(0, 2, 3, 1), (4,), norm.weight, norm.bias, norm.eps).permute(0, 3, 1, 2)
    y = F.conv_transpose2d(F.gelu(y), second.weight, second.bias, 2)
    for layer in rest:
        y = layer(y)
    torch.testing.assert_close(neck((x,))[0], y)
