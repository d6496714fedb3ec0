import numpy as np
import pytest
import torch
from matplotlib import pyplot

from mmattn.analysis.attention import LayerAttention, Weights
from mmattn.analysis.sheets import attention_sheet, summary


def test_numbers_of_a_sheet():
    """Of each head, the share of the weights that goes to padding, and the mean distance in pixels; stages, blocks and
    heads are counted from 1."""
    weights = [Weights('', torch.full((1, 3, 3), 1 / 9), top=-1, left=-1)]
    found = summary(LayerAttention(0, 1, 'NeighbourhoodAttention', 4, (0, 0), weights), (8, 8))
    (head,) = found['heads']
    assert head['outside'] == pytest.approx(5 / 9) and head['sum'] == pytest.approx(1)
    assert head['mean_distance'] == pytest.approx((4 * 4 + 4 * 4 * 2**0.5) / 9)
    assert (found['stage'], found['block'], head['head'], found['stride']) == (1, 2, 1, 4)


def layer(stage: int, values: torch.Tensor, stride: int, top: int = 0, left: int = 0) -> LayerAttention:
    return LayerAttention(stage, 0, 'ELSA', stride, (2, 2), [Weights('', values, top=top, left=left)])


def pictures(layers: list[LayerAttention]) -> tuple[pyplot.Figure, list[pyplot.Axes]]:
    """The sheet of an image of 64 x 64 pixels and its axes with a picture of a head, without the scale."""
    figure, _ = attention_sheet(layers, np.ones((64, 64, 3), np.float32), (10, 10))
    return figure, [axis for axis in figure.axes if axis.get_title().startswith('head')]


def test_sheet_is_filled():
    """Layers of 1, 2, 4, 4 and 8 heads, as of ELSA-Swin, leave less than a quarter of the sheet empty."""
    layers = [layer(i, torch.rand(heads, 8, 8), 8) for i, heads in enumerate((1, 2, 4, 4, 8))]
    figure, heads = pictures(layers)
    grid = [axis for axis in figure.axes if axis.get_subplotspec()]
    assert len(heads) == 19 and sum(bool(axis.images) for axis in grid) == 24 > 0.75 * len(grid)
    pyplot.close(figure)


def test_sheet_has_one_scale():
    """If a head has negative weights, all are drawn with the scale that has them, and it is shown."""
    signed = torch.ones(1, 8, 8)
    signed[:, :4] = -1
    figure, heads = pictures([layer(0, torch.ones(1, 8, 8), 8), layer(1, signed, 8)])
    one, other = (axis.images[1].get_array() for axis in heads)
    assert (one[7, 7] == other[7, 7]).all() and (one[0, 0] == one[7, 7]).all() and (other[0, 0] != other[7, 7]).any()
    assert figure.axes[-1].get_xlim() == (-1, 1)
    pyplot.close(figure)


def test_parts_of_a_layer():
    """Neighbours are enlarged, beside pooled tokens of the whole image, and no title is cut off."""
    parts = [Weights('neighbours', torch.ones(1, 3, 3), top=1, left=1), Weights('pooled', torch.ones(1, 2, 2), cell=8)]
    figure, (near, far) = pictures([LayerAttention(0, 0, 'AggregatedAttention', 4, (2, 2), parts)])
    left, right = near.get_xlim()
    assert 0 < left <= 4 and 16 <= right < 20 and far.get_xlim() == (0, 64)
    figure.draw_without_rendering()
    assert all(axis.title.get_window_extent().x0 >= 0 for axis in figure.axes)
    pyplot.close(figure)


def test_pictures_of_small_regions():
    """Neighbours of the query are enlarged, with a frame where they are. Beside one in padding, others are dark."""
    padding = torch.full((1, 3, 3), 1e-3)
    padding[0, 0, 0] = 1
    layers = [layer(0, torch.ones(1, 3, 3), 4, 1, 1), layer(1, torch.ones(1, 8, 8), 8), layer(2, padding, 32, -1, -1)]
    figure, heads = pictures(layers)
    left, right = heads[0].get_xlim()
    assert 0 < left <= 4 and 16 <= right < 20 and heads[1].get_xlim() == (0, 64)
    frames = [len(axis.patches) for axis in figure.axes if axis.get_title().startswith('stage')]
    assert frames[0] > frames[1] == frames[2]
    assert heads[2].get_title().endswith('% in padding') and heads[2].images[1].get_array()[1, 1, 3] < 0.05
    pyplot.close(figure)
