"""The GPU kernels of neighbourhood attention, on a GPU or on the CPU under Triton's interpreter (see conftest.py)."""

import pytest
import torch

from mmattn.ops import neighbourhood_attention
from tests.ops.test_neighbourhood import gradients, make_inputs

kernels = pytest.importorskip('mmattn.ops.neighbourhood.triton', exc_type=ImportError)
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.mark.usefixtures('triton_runs')
@pytest.mark.parametrize(
    'size, k, dilation, d, dtype, bias, beyond',
    [
        ((1, 2, 9), 3, 1, 6, torch.bfloat16, True, True),  # rows are continued
        pytest.param((1, 7, 5), 3, 2, 4, torch.float32, False, True, marks=pytest.mark.slow),
        pytest.param((2, 9, 12), 5, 1, 16, torch.float16, True, False, marks=pytest.mark.slow),
        pytest.param((1, 8, 15), 3, 3, 8, torch.float32, True, True, marks=pytest.mark.slow),
        pytest.param((2, 9, 16), 7, 1, 32, torch.float32, True, False, marks=pytest.mark.slow),
        pytest.param((1, 15, 16), 7, 2, 32, torch.bfloat16, True, False, marks=pytest.mark.slow),
    ],
)
def test_kernels_are_the_reference(monkeypatch, size, k, dilation, d, dtype, bias, beyond):
    """The output and all gradients are those of the reference in float64. Maps have several tiles, and the maps are
    parts of a projection."""
    monkeypatch.setattr(kernels, 'BLOCK_SIZE', 128)
    inputs = [None if x is None else x.to(dtype) for x in make_inputs(*size, 2, d, k, bias, beyond)]
    fused = torch.randn(*size, 3, 2, d).to(dtype)
    inputs[:3] = fused.unbind(3)
    upstream = torch.randn(*size, 2, d).to(dtype)
    exact = [None if x is None else x.double() for x in inputs]
    expected = gradients(neighbourhood_attention, exact, upstream, k, dilation, backend='reference')
    given = [None if x is None else x.to(DEVICE) for x in inputs]
    found = gradients(neighbourhood_attention, given, upstream.to(DEVICE), k, dilation, backend='triton')
    tolerance = 40 * torch.finfo(dtype).eps
    for actual, wanted in zip(found, expected):
        assert actual.dtype == dtype
        assert (actual.double().cpu() - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.usefixtures('triton_runs')
def test_a_single_image_in_another_layout():
    """Of one image, maps can be seen as rows of pixels without a copy, also if channels are not neighbours."""
    maps = torch.randn(3, 1, 8, 4, 5, device=DEVICE).permute(0, 1, 3, 4, 2).unflatten(-1, (2, 4))
    expected = neighbourhood_attention(*maps, None, 3, 1, backend='reference')
    torch.testing.assert_close(neighbourhood_attention(*maps, None, 3, 1, backend='triton'), expected)
