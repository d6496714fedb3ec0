"""Detectors as graphs: what they find is what MMDetection's ``predict`` finds."""

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.detection.export import OUTPUTS, TraceableDetector, detect, largest_differences
from mmattn.engine.configs import load_config
from mmattn.engine.export import read_onnx, smallest_side, trace, write_onnx
from mmattn.errors import InputError
from tests import ROOT
from tests.backbones.cases import CASES, every_backbone
from tests.engine.test_export import needs_export

RETINANET = 'toy/retinanet_shunted-toy_fpn'
MASK_RCNN = 'toy/mask-rcnn_shunted-toy_fpn'
CASCADE = 'elsa_swin/cascade-mask-rcnn_elsa-swin-t_fpn_ms-1x_coco'
#: multiples of the padding and others
SIZES = ((160, 256), (257, 131), (200, 333))
#: boxes in pixels, scores, share of a mask's pixels: rounding moves a border where the probability is at the threshold
CLOSE = (1e-2, 1e-4, 1e-3)


def build(config, case=CASES['ShuntedTransformer'], **options):
    """A detector with a small backbone and few proposals. Its scores differ, so that rounding does not reorder them."""
    cfg = load_config(ROOT / 'configs' / f'{config}.py').model
    cfg.backbone = ConfigDict(case.config(case.trained))
    channels = list(case.trained_channels)
    if case.name == 'MSFViT':
        pyramid = dict(type='Feature2Pyramid', embed_dim=channels[0], rescales=[4, 2, 1, 0.5])
        cfg.neck = [dict(pyramid, type='mmseg.Feature2Pyramid', norm_cfg=dict(type='BN')), cfg.neck]
        cfg.neck[1].in_channels = channels
    else:
        cfg.neck.in_channels = channels
    if 'rpn' in cfg.test_cfg:
        cfg.test_cfg.rpn.update(nms_pre=100, max_per_img=20)
    wrapped = ConfigDict(model=cfg)
    for key, value in options.items():
        part, names = wrapped.model, key.split('__')
        for name in names[:-1]:
            part = part[name]
        part[names[-1]] = value
    with DefaultScope.overwrite_default_scope('mmdet'):
        detector = revert_sync_batchnorm(MODELS.build(cfg)).eval()

    def spread(layer, _, output):
        factor = 2 / output.std()
        layer.weight.data *= factor
        return output * factor

    for name, layer in detector.named_modules():
        if name.endswith(('rpn_cls', 'fc_cls', 'retina_cls', 'conv_logits')):
            nn.init.constant_(layer.bias, -4.0 if 'retina' in name else 0.0)
            handle = layer.register_forward_hook(spread)
            layer.register_forward_hook(lambda *_, handle=handle: handle.remove())
    detect(detector, torch.randn(1, 3, 160, 192))
    return detector


@pytest.mark.parametrize(
    'config, options',
    [
        (RETINANET, dict(test_cfg__nms_pre=60)),
        (RETINANET, dict(test_cfg__score_thr=0.999999, data_preprocessor__pad_size_divisor=1)),
        (MASK_RCNN, dict(test_cfg__rcnn__max_per_img=7, test_cfg__rcnn__mask_thr_binary=0.3)),
        (MASK_RCNN, dict(test_cfg__rcnn__score_thr=0.999999)),
        (MASK_RCNN, dict(roi_head__bbox_head__reg_class_agnostic=False, roi_head__mask_head__class_agnostic=True)),
        (MASK_RCNN, dict(roi_head__mask_head=None, test_cfg__rpn__min_bbox_size=20)),
        pytest.param(CASCADE, dict(), marks=pytest.mark.slow),
    ],
)
def test_finds_what_the_detector_finds(config, options):
    """With the settings of the detector, per-class boxes, few or no objects, and sides that need padding."""
    detector = build(config, **options)
    graph = TraceableDetector(detector)
    nothing = options.get('test_cfg__score_thr') or options.get('test_cfg__rcnn__score_thr')
    for size in SIZES[:2]:
        image = torch.randn(1, 3, *size)
        expected = detect(detector, image)
        with torch.no_grad():
            found = graph(image)
        assert [x.shape for x in found] == [x.shape for x in expected] and bool(nothing) == (not len(found[0]))
        assert all(a <= b for a, b in zip(largest_differences(expected, found), CLOSE))


@pytest.mark.parametrize(
    'config, change, message',
    [
        (RETINANET, dict(bbox_head__type='FreeAnchorRetinaHead'), 'dense_head FreeAnchorRetinaHead .* only RetinaHead'),
        (RETINANET, dict(type='FSAF'), 'detector FSAF cannot be exported'),
        (RETINANET, dict(test_cfg__nms=dict(type='soft_nms', iou_threshold=0.5)), 'another type of NMS'),
        (RETINANET, dict(test_cfg__nms=dict(type='nms', iou_threshold=0.5, offset=1)), 'an option of NMS'),
        (RETINANET, dict(test_cfg__nms_pre=-1), 'without nms_pre'),
        (RETINANET, dict(data_preprocessor__pad_value=114), 'a pad_value other than 0'),
        (MASK_RCNN, dict(test_cfg__rcnn__mask_thr_binary=-1), 'negative mask_thr_binary'),
        (MASK_RCNN, dict(roi_head__mask_head__type='HTCMaskHead'), 'mask_head HTCMaskHead cannot be exported'),
    ],
)
def test_what_is_not_supported_is_refused(config, change, message, monkeypatch):
    """Rather than exporting a graph that finds something else."""
    monkeypatch.setattr('tests.detection.test_export.detect', lambda *_: None)
    with pytest.raises(InputError, match=message):
        TraceableDetector(build(config, **change))


def test_differences():
    """Detections are compared in any order; one too many, another label or a moved box shows."""
    boxes, labels, scores = torch.rand(5, 4) * 100, torch.arange(5), torch.rand(5)
    masks = torch.rand(5, 10, 10) > 0.5
    order = torch.tensor([2, 0, 1, 4, 3])
    assert largest_differences(
        (boxes, labels, scores, masks), (boxes[order], labels[order], scores[order], masks[order])
    ) == (0, 0, 0)
    moved, other = boxes + torch.tensor([0.0, 0.5, 0.0, 0.0]), masks.clone()
    other[1, 0, 0] ^= True
    assert largest_differences((boxes, labels, scores, masks), (moved, labels, scores + 0.25, other)) == pytest.approx(
        (0.5, 0.25, 0.01)
    )
    assert largest_differences((boxes, labels, scores), (boxes[:4], labels[:4], scores[:4])) == (torch.inf,) * 3
    assert largest_differences((boxes, labels, scores), (boxes, labels + 5, scores))[0] == torch.inf


def export(detector, folder):
    """The detector as a function that onnxruntime computes."""
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    graph = trace(TraceableDetector(detector))
    assert smallest_side(graph) < 130
    write_onnx(graph, folder / 'detector.onnx', OUTPUTS)
    return read_onnx(folder / 'detector.onnx')


@pytest.mark.slow
@needs_export
@pytest.mark.parametrize('config', [RETINANET, CASCADE])
def test_onnx(config, tmp_path):
    """One file finds what the detector finds in images of any size, and nothing in an image without objects."""
    detector = build(config)
    run = export(detector, tmp_path)
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        expected = detect(detector, image)
        assert len(expected[0]) and all(a <= b for a, b in zip(largest_differences(expected, run(image)), CLOSE))


@pytest.mark.slow
@needs_export
@every_backbone
def test_onnx_mask_rcnn(case, tmp_path):
    """Mask R-CNN with every backbone; a detector that finds nothing returns empty tensors."""
    detector = build(MASK_RCNN, case, test_cfg__rcnn__score_thr=0.3)
    run = export(detector, tmp_path)
    counts = []
    for size in SIZES:
        image, blank = torch.randn(1, 3, *size), torch.zeros(1, 3, *size)
        expected = detect(detector, image)
        counts.append(len(expected[0]))
        assert all(a <= b for a, b in zip(largest_differences(expected, run(image)), CLOSE))
        expected = detect(
            detector, blank
        )  # boxes of a blank image have equal scores, so only their absence is compared
        assert len(expected[0]) or [x.shape for x in run(blank)] == [x.shape for x in expected]
    assert max(counts)
