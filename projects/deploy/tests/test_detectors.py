"""Detectors as graphs: what they find is what MMDetection's ``predict`` finds."""

import copy
import functools

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmattn.errors import InputError
from mmattn.export.graphs import RUNTIMES, smallest_side, trace, write_onnx
from mmattn_deploy.detectors import OUTPUTS, TraceableDetector, _dense_boxes, detect, largest_differences, spread_scores
from mmguard.runs.configs import load_config
from tests import ROOT
from tests.backbones.cases import CASES
from tests.export.test_graphs import needs_export

RETINANET = '../projects/lab/configs/toy/retinanet_shunted-toy_fpn'
MASK_RCNN = '../projects/lab/configs/toy/mask-rcnn_shunted-toy_fpn'
CASCADE = 'elsa_swin/cascade-mask-rcnn_elsa-swin-t_fpn_ms-1x_coco'
NMS = dict(type='nms', iou_threshold=0.2)
#: multiples of the padding and others
SIZES = ((160, 256), (257, 131), (200, 333))
#: detections without a partner, boxes in pixels, scores, share of a mask's pixels: rounding moves a border where the
#: probability is at the threshold
CLOSE = (0, 1e-2, 1e-4, 1e-3)


@functools.cache
def read(config):
    return load_config(ROOT / 'configs' / f'{config}.py').model


def build(config, case=CASES['ShuntedTransformer'], **options):
    """A detector with two maps of a backbone, one pooled map and few proposals, in which tracing takes little time."""
    cfg = copy.deepcopy(read(config))
    cfg.backbone = ConfigDict(case.config(case.tiny))
    channels = list(case.build(case.tiny).out_channels)
    cfg.neck.update(in_channels=channels, num_outs=3, start_level=0, add_extra_convs=False)
    (cfg.rpn_head if 'rpn_head' in cfg else cfg.bbox_head).anchor_generator.strides = [4, 8, 16]
    if 'roi_head' in cfg:
        for extractor in (cfg.roi_head.bbox_roi_extractor, cfg.roi_head.mask_roi_extractor):
            extractor.featmap_strides = [4, 8]
        cfg.roi_head.mask_head.num_convs = 1
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

    spread_scores(detector, torch.randn(1, 3, 160, 192))
    return detector


@pytest.mark.parametrize(
    'config, options',
    [
        (RETINANET, dict(test_cfg__nms_pre=60, test_cfg__min_bbox_size=20, test_cfg__max_per_img=7)),
        (
            RETINANET,
            dict(
                neck__add_extra_convs='on_input',
                data_preprocessor__pad_size_divisor=1,
                test_cfg__nms__iou_threshold=0.2,
            ),
        ),
        (RETINANET, dict(test_cfg__score_thr=0.999999)),
        (MASK_RCNN, dict(test_cfg__rcnn=dict(max_per_img=7, mask_thr_binary=0.3, score_thr=0.2, nms=NMS))),
        (MASK_RCNN, dict(test_cfg__rcnn__score_thr=0.999999)),
        (MASK_RCNN, dict(roi_head__bbox_head__reg_class_agnostic=False, roi_head__mask_head__class_agnostic=True)),
        (MASK_RCNN, dict(roi_head__mask_head=None, test_cfg__rpn__min_bbox_size=20, test_cfg__rpn__nms_pre=15)),
        pytest.param(CASCADE, dict(), marks=pytest.mark.slow),
    ],
)
def test_finds_what_the_detector_finds(config, options):
    """With the settings of the detector, per-class boxes, few or no objects, and sides that need padding."""
    nothing = 0.999999 in options.values()
    for expected, found in find_both_ways(build(config, **options)):
        assert [x.shape for x in found] == [x.shape for x in expected] and nothing == (not len(found[0]))
        assert all(a <= b for a, b in zip(largest_differences(expected, found), CLOSE))


def test_maps_of_one_size():
    """As a ViT has them."""
    for expected, found in find_both_ways(build(MASK_RCNN, CASES['MSFViT'])):
        assert len(found[0]) and all(a <= b for a, b in zip(largest_differences(expected, found), CLOSE))


def test_proposals_of_each_level():
    """NMS of the RPN is per level: a proposal stays though a box of another level covers it and has a higher score."""
    detector = build(MASK_RCNN, rpn_head__anchor_generator__base_sizes=[8, 8, 8], test_cfg__rpn__max_per_img=300)
    nn.init.zeros_(detector.rpn_head.rpn_reg.weight)
    maps = [torch.randn(1, 64, *size) for size in ((20, 32), (10, 16), (5, 8))]
    with torch.no_grad():
        boxes, _, scores = _dense_boxes(detector.rpn_head, maps, (80, 128))
        (expected,) = detector.rpn_head.predict(maps, [DetDataSample(metainfo=dict(img_shape=(80, 128)))])
    assert len(boxes.unique(dim=0)) < len(boxes) == len(expected)
    torch.testing.assert_close((boxes, scores), (expected.bboxes, expected.scores))


def find_both_ways(detector):
    """What the detector finds in images, and what its traceable form finds, also one made while it trains."""
    graph = TraceableDetector(detector.train())
    detector.eval()
    for size in SIZES[:2]:
        image = torch.randn(1, 3, *size)
        with torch.no_grad():
            yield detect(detector, image), graph(image)


@pytest.mark.parametrize(
    'config, change, message',
    [
        (
            RETINANET,
            dict(bbox_head__type='FreeAnchorRetinaHead'),
            'FreeAnchorRetinaHead cannot be exported, only RetinaNet',
        ),
        (RETINANET, dict(test_cfg__nms=dict(type='soft_nms', iou_threshold=0.5)), 'another type of NMS'),
        (RETINANET, dict(test_cfg__nms_pre=-1), 'no positive nms_pre'),
        (MASK_RCNN, dict(roi_head__bbox_roi_extractor__roi_layer__pool_mode='max'), 'max pooling in RoIAlign'),
        (MASK_RCNN, dict(test_cfg__rcnn__mask_thr_binary=-1), 'negative mask_thr_binary'),
    ],
)
def test_what_is_not_supported_is_refused(config, change, message, monkeypatch):
    """Rather than exporting a graph that finds something else."""
    monkeypatch.setattr('projects.deploy.tests.test_detectors.spread_scores', lambda *_: None)
    with pytest.raises(InputError, match=message):
        TraceableDetector(build(config, **change))


def test_differences():
    """Detections are compared in any order; one too many, another label, a moved box, score or mask shows."""
    boxes, labels, scores = torch.rand(5, 4) * 100, torch.arange(5), torch.rand(5)
    masks = torch.rand(5, 10, 10) > 0.5
    order = torch.tensor([2, 0, 1, 4, 3])
    assert largest_differences(
        (boxes, labels, scores, masks), (boxes[order], labels[order], scores[order], masks[order])
    ) == (0, 0, 0, 0)
    moved, other = boxes + torch.tensor([0.0, 0.01, 0.0, 0.0]), masks.clone()
    moved[4] += 1
    other[1, 0, 0] ^= True
    assert largest_differences((boxes, labels, scores, masks), (moved, labels, scores + 0.25, other)) == pytest.approx(
        (1, 0.01, 0.25, 0.01), rel=1e-3
    )
    assert largest_differences((boxes, labels, scores), (boxes[:4], labels[:4], scores[:4])) == (1, 0, 0, 0)
    assert largest_differences((boxes, labels, scores), (boxes, labels + 5, scores)) == (5, 0, 0, 0)
    unknown = scores.clone()
    unknown[3] = torch.nan
    assert not largest_differences((boxes, labels, scores), (boxes, labels, unknown))[2] <= 1
    twice = torch.zeros(5, dtype=torch.long)
    assert largest_differences((boxes, labels, scores), (boxes[twice], labels[twice], scores[twice])) == (4, 0, 0, 0)
    assert largest_differences((boxes, labels, scores), (boxes[:0], labels[:0], scores[:0])) == (5, 0, 0, 0)


@pytest.mark.slow
@needs_export
@pytest.mark.parametrize(
    'config, backbone, options',
    [
        (RETINANET, 'ShuntedTransformer', dict(neck__add_extra_convs='on_input')),
        (MASK_RCNN, 'ELSASwin', dict()),
        (MASK_RCNN, 'ELSASwin', dict(test_cfg__rcnn__score_thr=0.999999)),
        (CASCADE, 'ShuntedTransformer', dict()),
    ],
    ids=['retinanet', 'mask-rcnn', 'nothing', 'cascade'],
)
def test_onnx(config, backbone, options, tmp_path):
    """One file finds what the detector finds in images of any size, and nothing where the detector finds nothing."""
    nothing = 0.999999 in options.values()
    for package in ('onnxscript', *RUNTIMES):
        pytest.importorskip(package)
    detector = build(config, CASES[backbone], **options)
    graph = trace(TraceableDetector(detector))
    assert smallest_side(graph) <= 33
    write_onnx(graph, tmp_path / 'detector.onnx', OUTPUTS)
    runs = [read(tmp_path / 'detector.onnx') for read in RUNTIMES.values()]
    for size in SIZES:
        image = torch.randn(1, 3, *size)
        expected = detect(detector, image)
        for run in runs:
            found = run(image)
            assert [x.shape for x in found] == [x.shape for x in expected] and nothing == (not len(expected[0]))
            assert all(a <= b for a, b in zip(largest_differences(expected, found), CLOSE))
