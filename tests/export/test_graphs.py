"""Exported graphs of backbones and segmentors, run by torch, onnxruntime and OpenVINO on images of any size."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.export.graphs import (
    RUNTIMES,
    AveragePool,
    any_size,
    as_module,
    largest_difference,
    read_onnx,
    trace,
    write_onnx,
)
from tests import ROOT
from tests.backbones.cases import CASES

needs_export = pytest.mark.skipif(any_size is None, reason='torch.export of any size came with torch 2.6')
#: multiples of strides, windows and pool scales, and others; the smallest; maps of one window and of several
SIZES = ((64, 96), (97, 131), (57, 64), (260, 75))
#: what exported backbones consist of. TensorRT 10.0 lists them all, see docs/predict.md; check there before
#: you add one.
OPERATORS = set(
    """
    Abs Add And AveragePool BatchNormalization Cast Clip Concat ConstantOfShape Conv ConvTranspose Cos CumSum Div
    Einsum Elu Equal Expand Gather GatherND Gelu Gemm Greater GreaterOrEqual LayerNormalization Less LessOrEqual Log
    MatMul Max MaxPool Min Mod Mul Neg Not Pad Pow Range Reciprocal ReduceL2 ReduceMean ReduceSum Relu Reshape
    Resize ScatterND Shape Sigmoid Sign Sin Slice Softmax Split Squeeze Sub Tile Transpose Unsqueeze Where
    """.split()
)


@pytest.mark.parametrize('output_size', [1, 3, (6, 2)])
def test_average_pool(output_size):
    """Pooling by matrix products equals torch's, also if bins overlap or outnumber the pixels."""
    for size in ((7, 5), (12, 12), (2, 1)):
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(AveragePool(output_size)(x), nn.AdaptiveAvgPool2d(output_size)(x))


class Pools(nn.Sequential):
    """Its ``train`` returns nothing, as that of MMDetection's ResNet."""

    def train(self, mode=True):
        super().train(mode)


@needs_export
def test_max_pool():
    """Windows that end outside of the map count as the model's pooling says. Without such, a graph takes odd and even
    sizes, with torch's checks too."""
    model, usual = Pools(nn.MaxPool2d((2, 2)), nn.MaxPool2d(2, ceil_mode=True)), Pools(nn.MaxPool2d(2))
    assert largest_difference(model, as_module(trace(model)), SIZES[1:3]) == [0.0, 0.0]
    assert largest_difference(usual, trace(usual).module(), SIZES[:2]) == [0.0, 0.0]


def test_a_nan_is_a_difference():
    """In any output."""
    nan = torch.full((2,), torch.nan)
    for outputs in ((nan, torch.ones(2)), (torch.ones(2), nan)):
        (difference,) = largest_difference(lambda _: (torch.ones(2),) * 2, lambda _, found=outputs: found, [(8, 8)])
        assert difference != difference


def export_all_ways(model, folder):
    """Largest relative differences of torch's graph, and of the ONNX file in each runtime, to the model."""
    for package in ('onnxscript', *RUNTIMES):
        pytest.importorskip(package)
    graph = trace(model)
    write_onnx(graph, folder / 'model.onnx')
    runs = [as_module(graph), *(read(folder / 'model.onnx') for read in RUNTIMES.values())]
    return [max(largest_difference(model, run, SIZES)) for run in runs]


@pytest.mark.slow
@needs_export
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_backbone(case, tmp_path):
    """One graph, and one ONNX file of known operators, give the maps of images of any size."""
    onnx = pytest.importorskip('onnx')
    assert max(export_all_ways(case.build(case.tiny, drop_path_rate=0.0).eval(), tmp_path)) < 1e-5
    model = onnx.load(tmp_path / 'model.onnx')
    assert {node.op_type for node in model.graph.node} <= OPERATORS and model.opset_import[0].version <= 20


@pytest.mark.slow
@needs_export
def test_shift_depends_on_the_size():
    """Where maps of one window are not shifted, as in classifiers, a graph shifts along the same axes as the model."""
    case = CASES['ELSASwin']
    model = case.build(case.tiny, elsa_stages=(), shift_small_maps=False).eval()
    torch.nn.init.normal_(model.layers[1].blocks[1].attn.relative_position_bias_table)
    sizes = ((20, 20), (20, 70), (70, 20), (70, 70))  # the last map has one window along sides of up to 24 pixels
    graph = trace(model)
    assert max(largest_difference(model, as_module(graph), sizes)) < 1e-5
    # torch.compile would need minutes to simplify the indices of a roll by less than an unknown size.
    assert not [node for node in graph.graph.nodes if 'roll' in str(node.target)]


@pytest.mark.slow
@needs_export
@pytest.mark.parametrize(
    'config',
    [
        *('elsa-swin-toy_upernet', 'elsa-volo-toy_upernet', 'gsa-resnet-toy_fpn', 'shunted-toy_fpn'),
        *('msf-vit-toy_setr', 'msf-vit-toy_upernet'),
    ],
)
def test_segmentor(config, tmp_path):
    """Whole segmentors too. Their heads pool to fixed sizes, and resize maps whose size the graph does not know."""
    cfg = Config.fromfile(ROOT / 'projects/lab/configs/toy' / f'{config}.py')
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = revert_sync_batchnorm(MODELS.build(cfg.model)).eval()
    assert max(export_all_ways(model, tmp_path)) < 1e-4


def test_old_torch_is_an_error(monkeypatch):
    monkeypatch.setattr('mmattn.export.graphs.any_size', None)
    with pytest.raises(ImportError, match='needs torch 2.6 or newer'):
        trace(nn.Identity())


def test_threads(monkeypatch):
    """onnxruntime gets as many threads as it is told: tools/benchmark.py compares it with torch with as many."""
    runtime, seen = pytest.importorskip('onnxruntime'), []
    session = lambda file, options, providers: seen.append(options.intra_op_num_threads)
    monkeypatch.setattr(runtime, 'InferenceSession', session)
    read_onnx('a.onnx', 3)
    read_onnx('a.onnx')
    assert seen == [3, 0]


@needs_export
def test_the_model_stays_as_it_is():
    """A model that is exported during a training keeps its mode and its layers."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(2)).train()
    trace(model)
    assert all(module.training for module in model.modules()) and type(model[2]) is nn.AdaptiveAvgPool2d
