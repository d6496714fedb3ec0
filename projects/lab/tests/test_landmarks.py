import pytest
import torch

from mmattn.layers import MeanShiftAttention
from tests import ROOT
from tests.tools.in_process import load_tool, run_tool

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / 'projects/lab/tools')  # for attention_speed
    landmarks = load_tool('landmarks')


@torch.no_grad()
def test_distance():
    """As many landmarks as tokens give the exact means, one gives others, and the layer stays exact."""
    layer, found = MeanShiftAttention(8, 2), {1: [], 6: []}
    landmarks.measure(layer, 3 * torch.randn(1, 6, 6, 8), found)
    assert found[6][0] < 0.1 * found[1][0] and layer.landmarks == 0


@pytest.mark.parametrize('tool', [('landmarks', 'distance'), ('benchmark',), ('compare',)], ids=lambda tool: tool[0])
def test_rows_are_listed(tool):
    """As tools/train.py does, tools with arguments of their own list the rows of a config."""
    done = run_tool(*tool, 'projects/lab/configs/real/full/bccd.py', '--list-rows')
    assert done.returncode == 0 and done.stdout.split()[:2] == ['elsa-swin', 'msf-swin']
