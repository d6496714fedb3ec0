"""Backbones and segmentors as graphs of any size, run by torch and by onnxruntime."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.engine.export import AveragePool, any_size, as_module, largest_difference, read_onnx, trace, write_onnx
from tests import ROOT
from tests.backbones.test_graphs import TINY, build

needs_export = pytest.mark.skipif(any_size is None, reason='torch.export of any size came with torch 2.6')
#: divided by strides, windows and pool scales or not, near the least, and maps of one window and more
SIZES = ((64, 96), (97, 131), (57, 64), (260, 75))
#: one segmentor per family, of configs/toy, and what makes it smaller yet
SEGMENTORS = {
    'elsa-swin-toy_upernet': dict(
        arch=dict(embed_dim=32, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), group_width=4), kernel_size=3
    ),
    'shunted-toy_fpn': dict(
        arch=dict(embed_dims=(32, 64, 128, 256), depths=(1, 1, 1, 1), num_heads=(2, 4, 8, 16), stem_convs=0)
    ),
    'gsa-resnet-toy_fpn': dict(depth=dict(depths=(1, 1, 1, 1), stem_channels=32, base_channels=16, expansion=2)),
    'msf-vit-toy_setr': dict(),
    'msf-vit-toy_upernet': dict(),
    'msf-swin_upernet': dict(arch=dict(embed_dim=32, depths=(2, 1, 1, 1), num_heads=(1, 2, 4, 8))),
}


@pytest.mark.parametrize('output_size', [1, 3, (6, 2)])
def test_average_pool(output_size):
    """The pooling in products is torch's, also where bins overlap and where they are more than pixels."""
    for size in ((7, 5), (12, 12), (2, 1)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(AveragePool(output_size)(x), nn.AdaptiveAvgPool2d(output_size)(x))


def export_both_ways(model, folder):
    """Largest relative difference of torch's graph and of the ONNX file."""
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    graph = trace(model)
    write_onnx(graph, folder / 'model.onnx')
    return (
        max(largest_difference(model, as_module(graph), SIZES)),
        max(largest_difference(model, read_onnx(folder / 'model.onnx'), SIZES)),
    )


@needs_export
@pytest.mark.parametrize(
    'name', [name if name == 'MSFSwin' else pytest.param(name, marks=pytest.mark.slow) for name in TINY]
)
def test_backbone(name, tmp_path):
    """One graph, and one ONNX file, give the maps of pictures of any size."""
    assert max(export_both_ways(build(name).eval(), tmp_path)) < 1e-5


@pytest.mark.slow
@needs_export
@pytest.mark.parametrize('config', SEGMENTORS)
def test_segmentor(config, tmp_path):
    """Whole segmentors too, with pooling to fixed scales and resizing among maps of unknown size."""
    cfg = Config.fromfile(ROOT / 'configs' / 'toy' / f'{config.replace("msf-swin_", "elsa-swin-toy_")}.py')
    if config == 'msf-swin_upernet':
        cfg.model.backbone = dict(type='MSFSwin')
    cfg.model.backbone.update(SEGMENTORS[config])
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = revert_sync_batchnorm(MODELS.build(cfg.model)).eval()
    assert max(export_both_ways(model, tmp_path)) < 1e-4


def test_old_torch_is_told(monkeypatch):
    monkeypatch.setattr('mmattn.engine.export.any_size', None)
    with pytest.raises(ImportError, match='needs torch 2.6 or newer'):
        trace(nn.Identity())
