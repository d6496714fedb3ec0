"""tools/dev/launches.py: what backbones launch on a GPU, counted without one."""

import importlib
import sys
from collections import Counter

import pytest
import torch
from mmengine.registry import MODELS

from mmattn.analysis.least_time import Operators
from tests import ROOT

if torch.__version__ < (2, 11):
    pytest.skip('tools/dev/launches.py needs torch 2.11', allow_module_level=True)
pytest.importorskip('triton')

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / 'tools' / 'dev')
    tool = importlib.import_module('launches')

SWIN = dict(embed_dim=8, num_heads=(1, 1, 1, 1))
#: backbone -> its architecture without the depths, and the launches of its stem and two blocks: of inference and of a
#: training step. Who needs fewer writes the new number here.
BACKBONES = {
    'ELSASwin': (dict(SWIN, group_width=4), 63, 155),
    'MSFSwin': (SWIN, 37, 97),
    'SwinFrame': (SWIN, 41, 113),
    'DiNAT': (dict(SWIN, mlp_ratio=3, layer_scale=0, dilations=(2, 1, 1, 1)), 43, 114),
    'ShuntedTransformer': (dict(embed_dims=(8, 8, 8, 8), num_heads=(2, 2, 2, 2), stem_convs=1), 80, 216),
    'GSAResNet': (dict(stem_channels=8, base_channels=8, expansion=4), 40, 129),
    'ELSAVOLO': (dict(embed_dim=16, num_heads=(1, 1), stem_dim=8, mlp_ratio=3), 71, 174),
    'TransNeXt': (dict(embed_dims=(8, 8, 8, 8), num_heads=(2, 2, 2, 2)), 66, 200),
    'MSFViT': (dict(embed_dim=8, num_heads=1), 53, 115),
}


def build(name):
    """A backbone that ends with two blocks, the second of which has shifted windows if any has."""
    cls, arch = MODELS.get(name), BACKBONES[name][0]
    if name == 'MSFViT':
        return cls({**arch, 'depth': 2})
    attention = dict(gsa_stages=(0,), num_heads=2) if name == 'GSAResNet' else {}
    return cls(**{cls.arch_argument: {**arch, 'depths': (2, 1, 1, 1)}}, out_indices=(0,), **attention)


@pytest.mark.parametrize(
    'name, dtype',
    [*((name, torch.bfloat16) for name in BACKBONES), ('GSAResNet', torch.float16)],
    ids=[*BACKBONES, 'GSAResNet in float16'],
)
def test_launches(name, dtype):
    """No backbone launches more than before. In float16, GSA needs scales, which are in its kernels."""
    found = [tool.launches(build(name), (2, 3, 64, 64), training, dtype) for training in (False, True)]
    _, *most = BACKBONES[name]
    counts = [len(each) for each in found]
    assert all(map(int.__le__, counts, most)), f'{counts} launches: {[Counter(o.name for o in step) for step in found]}'


def test_layouts():
    """GSA-ResNet copies the image into another layout, and no map or gradient: the gradient of a map that the backbone
    returns has the layout of the one that it is added to, and convolutions have strides in place of slices."""
    cls, (arch, *_) = MODELS.get('GSAResNet'), BACKBONES['GSAResNet']
    model = cls({**arch, 'depths': (1, 1, 1, 1)}, out_indices=(0, 1), gsa_stages=(1,), num_heads=2)
    found = tool.launches(model, (2, 3, 64, 64), True, torch.bfloat16)
    found = Counter(each.name for each in found if each.traffic > 1000)
    assert found['clone'] == 1 and not found['slice_backward'] and not found['avg_pool2d'], found


@pytest.mark.parametrize('name', ['MSFSwin', 'GSAResNet'])
def test_backward_pass(name, monkeypatch):
    """The tool's own backward pass has the operators of torch's, recomputation and sums of gradients included, but not
    the copies of gradients of weights."""

    def count(backward):
        torch.manual_seed(0)
        loss = sum(out.square().mean() for out in build(name).train()(torch.randn(2, 3, 64, 64)))
        with Operators() as counter:
            backward(loss)
        return Counter(each.name for each in counter.found)

    expected = count(torch.Tensor.backward)
    monkeypatch.setattr(torch._C, '_current_graph_task_id', lambda: 0)  # as in tool.counted()
    found = count(tool.backward)
    assert not found - expected and set(expected - found) <= {'clone', 'copy_'}


def test_table(monkeypatch, capsys):
    """A model without its Triton kernels beside itself with them: a row each, and the operators that take most time."""
    monkeypatch.setattr(tool.benchmark, 'eager', lambda name, args: chosen(name))
    monkeypatch.setattr(
        sys, 'argv', 'launches.py a:shifted --baseline a --steps inference --size 64x64 --operators 1'.split()
    )

    def chosen(name):
        model = build('ELSASwin')
        model.set_backend(name.partition(':')[2] or None)
        return model

    tool.main()
    lines = capsys.readouterr().out.splitlines()
    fused, shifted = ([cell.strip() for cell in line.split('|')[1:-1]] for line in lines[4:6])
    assert (fused[0], shifted[0], fused[4], shifted[4]) == ('a', 'a:shifted', '11', '9')
    assert fused[3] == fused[9] == '1.00' and float(shifted[3]) > 2
    assert lines[6:9] == ['', 'a, inference:', '']
