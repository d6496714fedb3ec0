import pytest
import torch

from mmattn.analysis.attention import LayerAttention, Weights
from mmattn.analysis.sheets import summary


def test_numbers_of_a_sheet():
    """Of each head, the share of the weights that goes to padding, and the mean distance in pixels; stages, blocks and
    heads are counted from 1."""
    weights = [Weights('', torch.full((1, 3, 3), 1 / 9), top=-1, left=-1)]
    found = summary(LayerAttention(0, 1, 'NeighbourhoodAttention', 4, (0, 0), weights), (8, 8))
    (head,) = found['heads']
    assert head['outside'] == pytest.approx(5 / 9) and head['sum'] == pytest.approx(1)
    assert head['mean_distance'] == pytest.approx((4 * 4 + 4 * 4 * 2**0.5) / 9)
    assert (found['stage'], found['block'], head['head'], found['stride']) == (1, 2, 1, 4)
