"""tools/export.py as a user calls it."""

import re
import sys

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.export.graphs import RUNTIMES, trace, write_onnx
from mmguard.errors import CheckpointError, InputError
from mmguard.packages import MissingPackage
from mmguard.runs.configs import load_config
from tests import ROOT
from tests.configs import FOUR_BANDS, GREY_MAPS
from tests.export.test_graphs import needs_export
from tests.tools.in_process import load_tool

SEGMENTOR = 'projects/lab/configs/toy/msf-vit-toy_setr.py'
CLASSIFIER = 'projects/lab/configs/toy/elsa-swin-toy_in1k.py'
RETINANET = 'projects/lab/configs/toy/retinanet_shunted-toy_fpn.py'
TRANSNEXT = 'projects/lab/configs/toy/mask-rcnn_transnext-toy_fpn.py'
SEMANTIC_FPN = 'projects/lab/configs/toy/transnext-toy_fpn.py'
DETECTOR = 'projects/lab/configs/toy/mask-rcnn_gsa-resnet-toy_fpn.py'
SEGMENTOR_SNIPPET, DETECTOR_SNIPPET = (
    code
    for page in ('docs/predict.md', 'projects/deploy/README.md')
    for code in re.findall(r'```python\n(.*?)```', (ROOT / page).read_text(), re.DOTALL)
    if 'onnxruntime' in code
)


@pytest.fixture
def export(monkeypatch):
    """The tool's main, called with arguments."""
    tool = load_tool('export')

    def main(*arguments):
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, 'argv', ['export.py', *map(str, arguments)])
        tool.main()

    main.tool = tool
    return main


def test_project_is_missing(export, tmp_path, monkeypatch):
    """Without the project, the tool says how to install it before it builds a model; backbones need no project."""
    monkeypatch.setitem(sys.modules, 'mmattn_deploy', None)
    with pytest.raises(MissingPackage, match='needs mmattn_deploy: pip install ./projects/deploy'):
        export(DETECTOR, '--out', tmp_path / 'x.onnx')
    assert not list(tmp_path.iterdir())


def built(config):
    """A segmentor as its config initialises it."""
    with DefaultScope.overwrite_default_scope('mmseg'):
        return MODELS.build(Config.fromfile(ROOT / config).model)


@pytest.fixture
def segmentor():
    return built(SEGMENTOR)


def run_snippet(code):
    """Run a program of the docs in this folder, on a photo; its variables."""
    cv2.imwrite('street.jpg', np.random.default_rng(0).integers(0, 256, (97, 131, 3), np.uint8))
    exec(code, variables := {})
    return variables


class TwoObjects(nn.Module):
    """A detector or a segmentor as far as its file goes."""

    def __init__(self, outputs, channels=2):
        super().__init__()
        self.outputs, self.channels = outputs, channels

    def forward(self, image):
        if self.outputs == ('scores',):
            return torch.nn.functional.avg_pool2d(image, 4)[:, : self.channels]
        objects = torch.nonzero(image[0, 0, 0, :2] < torch.inf)
        found = objects.repeat(1, 4).float(), objects[:, 0], 0.9 / (1 + objects[:, 0])
        masks = image[0, :1] > objects[:, :1, None]
        return (*found, masks)[: len(self.outputs)]


@needs_export
@pytest.mark.parametrize(
    'outputs',
    [
        pytest.param(('boxes', 'labels', 'scores', 'masks'), marks=pytest.mark.slow),
        ('boxes', 'labels', 'scores'),
        ('scores',),
    ],
)
@pytest.mark.slow
def test_snippets_of_the_docs(outputs, tmp_path, monkeypatch, capsys):
    """They run with files of detectors with and without masks, and of segmentors. Axes have names."""
    onnx = pytest.importorskip('onnx')
    pytest.importorskip('onnxscript')
    pytest.importorskip('onnxruntime')
    monkeypatch.chdir(tmp_path)
    is_segmentor = outputs == ('scores',)
    file = 'segmentor.onnx' if is_segmentor else 'detector.onnx'
    facts = dict(classes=['cat', 'dog'], mean=[1.0, 2, 3], std=[4.0, 5, 6], channels='RGB')
    write_onnx(trace(TwoObjects(outputs)), file, outputs, facts)
    found = run_snippet(SEGMENTOR_SNIPPET if is_segmentor else DETECTOR_SNIPPET)
    printed = capsys.readouterr().out
    if is_segmentor:
        assert found['labels'].shape == (97, 131) and 'cat' in printed
    else:
        assert 'cat 0.90' in printed and 'dog 0.45' in printed and ('pixels' in printed) == (len(outputs) == 4)
    graph = onnx.load(file).graph
    axes = [[axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in graph.output]
    assert [axis.dim_param for axis in graph.input[0].type.tensor_type.shape.dim][2:] == ['height', 'width']
    if is_segmentor:
        assert 'height' in axes[0][2] and 'width' in axes[0][3]
    else:
        assert axes[0] == ['objects', 4] and axes[1] == axes[2] == ['objects']


@needs_export
def test_snippet_of_one_channel(tmp_path, monkeypatch):
    """The documented program finds class 1 where the probability, the sigmoid of the score, is above the threshold."""
    for package in ('onnx', 'onnxscript', 'onnxruntime'):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    facts = dict(classes=['cat', 'dog'], mean=[100.0] * 3, std=[50.0] * 3, channels='RGB', threshold=0.6)
    write_onnx(trace(TwoObjects(('scores',), 1)), 'segmentor.onnx', ('scores',), facts)
    labels = run_snippet(SEGMENTOR_SNIPPET)['labels']
    red = torch.from_numpy((cv2.imread('street.jpg')[None, None, ..., 2] - np.float32(100)) / 50)
    scores = torch.nn.functional.avg_pool2d(red, 4)
    scores = torch.nn.functional.interpolate(scores, (97, 131), mode='bilinear')
    expected = (scores.sigmoid() > 0.6)[0, 0].numpy()
    assert 0 < expected.mean() < 1 and (labels == expected).mean() > 0.999


def test_labels_from_scores(export, segmentor):
    """A file says the threshold of its only channel, and that a test averages windows; other files say neither."""
    cfg = Config.fromfile(ROOT / SEGMENTOR)
    assert not {'threshold', 'slide'} & set(export.tool.metadata(cfg, segmentor, {}, 3))
    segmentor.decode_head.out_channels, segmentor.decode_head.threshold = 1, 0.4
    segmentor.test_cfg = dict(mode='slide', crop_size=(64, 64), stride=(42, 42))
    found = dict(threshold=0.4, slide=dict(crop_size=(64, 64), stride=(42, 42)))
    assert export.tool.metadata(cfg, segmentor, {}, 3).items() >= found.items()
    segmentor.decode_head = nn.ModuleList([nn.Identity(), segmentor.decode_head])
    assert export.tool.metadata(cfg, segmentor, {}, 3).items() >= found.items()


@needs_export
def test_backbone(export, tmp_path, capsys):
    """The file has passed its comparison with the model, and runs at a size that was in none."""
    export(
        SEGMENTOR,
        '--backbone',
        '--out',
        tmp_path / 'vit.pt2',
        '--cfg-options',
        'model.backbone.arch.depth=1',
        'model.backbone.out_indices=(0,)',
    )
    assert capsys.readouterr().out.count('of the model') == 3 and len(list(tmp_path.iterdir())) == 1
    (out,) = torch.export.load(tmp_path / 'vit.pt2').module()(torch.zeros(1, 3, 77, 200))
    assert out.shape == (1, 96, 10, 25)


@needs_export
@pytest.mark.slow
@pytest.mark.parametrize('config', [SEGMENTOR, SEMANTIC_FPN])
def test_segmentor(export, tmp_path, capsys, monkeypatch, config):
    """A whole segmentor with trained weights, as ONNX; weights that do not fit are refused."""
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    torch.save(dict(state_dict=built(config).state_dict()), tmp_path / 'trained.pth')
    pytest.importorskip('openvino')
    export(config, tmp_path / 'trained.pth', '--out', tmp_path / 'segmentor.onnx')
    out = capsys.readouterr().out
    assert [out.count(f', {runtime}: within') for runtime in RUNTIMES] == [3, 3]
    monkeypatch.chdir(tmp_path)
    labels = run_snippet(SEGMENTOR_SNIPPET)['labels']
    assert labels.shape == (97, 131) and labels.max() < 150


@needs_export
@pytest.mark.slow
@pytest.mark.parametrize('config', [RETINANET, TRANSNEXT])
def test_detector(export, tmp_path, capsys, monkeypatch, config):
    """A whole detector, compared on noise, in which one without training finds nothing."""
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    pytest.importorskip('openvino')
    export(config, '--out', tmp_path / 'detector.onnx')
    out = capsys.readouterr().out
    assert out.count('0 detections') == 6 and 'name an image with objects by --image' in out
    assert config == TRANSNEXT or 'masks' not in out
    monkeypatch.chdir(tmp_path)
    assert run_snippet(DETECTOR_SNIPPET)['classes'][0] == 'person'


@needs_export
def test_a_wrong_detector_does_not_stay(export, tmp_path, monkeypatch):
    """Likewise if the file finds one box more."""
    pytest.importorskip('onnxruntime')
    more = tuple(torch.zeros(1, *shape) for shape in ((4,), (), ()))
    monkeypatch.setattr(export.tool, 'trace', lambda *_: None)
    monkeypatch.setattr(export.tool, 'smallest_side', lambda _: 33)
    monkeypatch.setattr(export.tool, 'write_onnx', lambda _, file, *__: file.write_bytes(b'0'))
    monkeypatch.setattr(export.tool, 'RUNTIMES', dict(onnxruntime=lambda _: lambda image: more))
    with pytest.raises(SystemExit, match='does not find what the model does'):
        export(RETINANET, '--out', tmp_path / 'x.onnx')
    assert not list(tmp_path.iterdir())


@needs_export
@pytest.mark.parametrize('difference', [float('nan'), 2e-3])
def test_a_wrong_file_does_not_stay(export, tmp_path, monkeypatch, difference):
    """A file that does not compute what the model does is removed, and the exit status is 1."""
    monkeypatch.setattr(export.tool, 'trace', lambda *_: None)
    monkeypatch.setattr(export.tool, 'smallest_side', lambda _: 33)
    monkeypatch.setattr(export.tool, 'largest_difference', lambda *_: [0.0, difference, 0.0])
    monkeypatch.setattr(torch.export, 'save', lambda _, file, **__: file.write_bytes(b'0'))
    monkeypatch.setattr(torch.export, 'load', lambda _: torch.nn.Identity())
    monkeypatch.setattr(torch.nn.Identity, 'module', lambda self: self, raising=False)
    with pytest.raises(SystemExit, match='does not compute what the model does'):
        export(SEGMENTOR, '--backbone', '--out', tmp_path / 'vit.pt2')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    'arguments, message',
    [
        ([SEGMENTOR, '--out', 'no/x.onnx'], 'there is no folder no for x.onnx'),
        ([CLASSIFIER, '--out', 'x.onnx'], 'is not a segmentor or detector: export the backbone'),
        ([DETECTOR, '--out', 'x.pt2'], 'a detector is exported as .onnx, not as .pt2'),
        ([SEGMENTOR, '--out', 'x.onnx', '--int8', '--images', 'mmattn'], '--images mmattn must be a folder with two'),
    ],
)
def test_mistakes_get_a_sentence(export, arguments, message):
    with pytest.raises(SystemExit, match=message):
        export(*arguments)


def test_other_models(export, tmp_path):
    """A head that needs more than feature maps, and a model without a backbone, are named before anything is traced."""
    with pytest.raises(InputError, match='Mask2FormerHead predicts masks, not class scores: export the backbone'):
        export('projects/lab/configs/toy/shunted-toy_mask2former.py', '--out', tmp_path / 'x.onnx')
    model = "dict(_delete_=True, type='TimmClassifier', model_name='resnet18', num_classes=9)"
    (tmp_path / 'timm.py').write_text(f"_base_ = '{ROOT / CLASSIFIER}'\nmodel = {model}")
    with pytest.raises(InputError, match='its model, a TimmClassifier, has no setting "backbone"'):
        export(tmp_path / 'timm.py', '--backbone', '--out', tmp_path / 'x.onnx')


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda c: c['state_dict'].pop('decode_head.conv_seg.bias'), 'is of another model'),
        (
            lambda c: c['state_dict'].update({'decode_head.conv_seg.bias': torch.ones(150, dtype=torch.int8)}),
            'is int8 for float32',
        ),
        (
            lambda c: c.update(meta=dict(mmattn=dict(backbone=dict(type='MSFViT', num_heads=1)))),
            'trained with num_heads',
        ),
    ],
)
def test_weights_must_be_of_the_model(export, tmp_path, segmentor, change, message):
    """Rather than exporting a segmentor that is not the trained one. This includes what its tensors do not show."""
    contents = dict(state_dict=segmentor.state_dict())
    change(contents)
    torch.save(contents, tmp_path / 'c.pth')
    with pytest.raises(CheckpointError, match=message):
        export(SEGMENTOR, tmp_path / 'c.pth', '--out', tmp_path / 'x.onnx')
    assert not (tmp_path / 'x.onnx').exists()


@pytest.mark.parametrize('bands', [1, 3, 4])
def test_what_images_must_be(export, tmp_path, bands):
    """The metadata of a file are what the test pipeline and the model do with an image, as --int8 reads it: also with
    Normalize in the pipeline, and of grey images."""
    (tmp_path / 'c.py').write_text({1: GREY_MAPS, 3: f'_base_ = {str(ROOT / SEGMENTOR)!r}', 4: FOUR_BANDS}[bands])
    cfg, colour = load_config(tmp_path / 'c.py'), np.array([200, 20, 10, 77][:bands], np.uint8)
    model = export.tool.build(cfg, None, False, {})
    cv2.imwrite(str(tmp_path / 'a.png'), np.broadcast_to(colour, (64, 64, bands)))
    facts = export.tool.metadata(cfg, model, {}, bands)
    (image,) = export.tool.prepared(cfg, model, [tmp_path / 'a.png'])
    given = image[0, :, 0, 0] * facts['std'] + facts['mean']
    np.testing.assert_allclose(given[::-1] if facts['channels'] == 'RGB' else given, colour, rtol=1e-4)
    assert facts['channels'] == {1: 'grey', 3: 'RGB', 4: 4}[bands] and facts['classes'][0] == 'wall'
    assert facts['load'] == [cfg.test_dataloader.dataset.pipeline[0]] and facts['resize'][0]['type'] == 'Resize'
    (tmp_path / 'a.png').write_bytes((tmp_path / 'a.png').read_bytes()[:60])
    with pytest.raises(InputError, match='a.png cannot be used'):
        export.tool.prepared(cfg, model, [tmp_path / 'a.png'])


def test_image_of_a_detector(export, tmp_path):
    """--image is prepared as the test pipeline does it, and resized."""
    cfg = Config.fromfile(ROOT / RETINANET)
    steps, norm = cfg.test_dataloader.dataset.pipeline, dict(mean=[10.0] * 3, std=[2.0] * 3)
    steps.insert(1, dict(type='Normalize', **norm))
    cfg.model.data_preprocessor = dict(type='DetDataPreprocessor')
    cv2.imwrite(str(tmp_path / 'a.png'), np.full((64, 128, 3), [10, 30, 50], np.uint8))
    examples = export.tool.prepared(cfg, export.tool.build(cfg, None, False, {}), [tmp_path / 'a.png'])
    found = list(export.tool.images(examples, 3))
    assert [tuple(one.shape[2:]) for one in found] == list(export.tool.DETECTOR_SIZES)
    assert all(one[0, :, 9, 9].tolist() == pytest.approx([20, 10, 0], abs=1e-4) for one in found)


def test_backbone_of_openmmlab(export, tmp_path):
    """A backbone of another package takes the weights of a whole model, and none if some are missing."""
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        backbone = MODELS.build(dict(type='ResNet', depth=18))
    weights, file = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}, tmp_path / 'c.pth'
    cfg = Config(dict(default_scope='mmpretrain', model=dict(backbone=dict(type='ResNet', depth=18))))
    torch.save(weights, file)
    model = export.tool.build(cfg, str(file), True, {})
    assert all(torch.equal(value, weights[f'backbone.{name}']) for name, value in model.state_dict().items())
    assert not model.training and not export.tool.build(cfg, None, True, {}).training
    weights.pop('backbone.conv1.weight')
    torch.save(weights, file)
    with pytest.raises(CheckpointError, match='1 tensors that are not there, .* conv1.weight'):
        export.tool.build(cfg, str(file), True, {})


def test_nothing_is_overwritten(export, tmp_path):
    (tmp_path / 'x.onnx').write_text('kept')
    with pytest.raises(SystemExit, match='exists already'):
        export(SEGMENTOR, '--out', tmp_path / 'x.onnx')
    assert (tmp_path / 'x.onnx').read_text() == 'kept'
