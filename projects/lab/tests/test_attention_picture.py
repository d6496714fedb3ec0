"""attention_picture.py: the mean of heads, and what is drawn of each attention."""

import numpy as np
import torch

from mmattn.analysis.attention import LayerAttention, Weights
from tests.tools.in_process import load_tool

tool = load_tool('attention_picture')


def test_mean_of_heads():
    """Groups of heads with cells of other sizes count by their heads, and what is beyond the map is cut off."""
    parts = [Weights('', torch.full((1, 2, 3), 4.0), cell=2), Weights('', torch.full((3, 3, 5), 5.0), first_head=1)]
    mean = tool.mean_of_heads(LayerAttention(0, 0, 'ShuntedAttention', 14, (1, 1), parts), (3, 5))
    assert torch.equal(mean.values, torch.full((1, 3, 5), 4.0))


def test_draw():
    """The title has the difference of the map, and a frame marks what the query sees, if it is not everything."""
    values = torch.ones(1, 4, 6)
    values[:, :, 3:] = 0
    seen = [
        LayerAttention(11, 0, 'any', 14, (1, 1), [Weights('', values if i == 3 else torch.ones(1, 4, 6))])
        for i in range(len(tool.ATTENTION))
    ]
    first = torch.rand(8, 4, 6)
    figure = tool.draw(np.ones((56, 84, 3)), (20.0, 20.0), seen, [first, *(1.5 * first for _ in seen[1:])])
    texts = [' '.join(text.get_text() for text in axis.texts) for axis in figure.axes]
    assert ['differs by 50.0 %' in text for text in texts] == [False, False, True, True, False, True, True, True]
    dotted = [patch for axis in figure.axes for patch in axis.patches if patch.get_linestyle() == ':']
    assert [patch.get_bbox().bounds for patch in dotted] == [(0, 0, 42, 56)]
