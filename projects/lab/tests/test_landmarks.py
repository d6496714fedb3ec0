import argparse

import pytest
import torch

from mmattn.layers import MeanShiftAttention
from mmguard.errors import InputError
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


def test_distance_of_a_segmentor(capsys):
    """Each block has its columns, for any model with an MSF-ViT; another backbone is refused in a sentence."""
    folder = ROOT / 'projects/lab/configs/toy'
    args = argparse.Namespace(config=str(folder / 'msf-vit-toy_setr.py'), row=None, checkpoint=None)
    landmarks.print_distance(args, 32, 32)
    assert 'block 1' in capsys.readouterr().out
    args.config = str(folder / 'shunted-toy_fpn.py')
    with pytest.raises(InputError, match='no ViT with MeanShiftAttention'):
        landmarks.print_distance(args, 32, 32)


@pytest.mark.parametrize('tool', [('landmarks', 'distance'), ('benchmark',), ('compare',)], ids=lambda tool: tool[0])
def test_rows_are_listed(tool):
    """As tools/train.py does, tools with arguments of their own list the rows of a config."""
    done = run_tool(*tool, 'projects/lab/configs/real/full/bccd.py', '--list-rows')
    assert done.returncode == 0 and done.stdout.split()[:2] == ['elsa-swin', 'msf-swin']
