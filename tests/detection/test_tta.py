"""MaskTTAModel, compared with MMDetection and with a loop over single boxes."""

from copy import deepcopy

import pytest
import torch
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import InstanceData
from torch import nn

from mmattn.detection import MaskTTAModel
from mmattn.errors import InputError
from mmguard.runs.configs import enable_tta
from tests import ROOT

TTA = dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=6)
SIZE = 48, 64
SCALES = 0.75, 1, 1.5


def detector(kind, threshold=-1, class_agnostic=False):
    """A small Mask R-CNN or Cascade Mask R-CNN. With its random weights it finds objects with distinct masks.

    With a threshold of -1, its masks are 255 times the probability.
    """
    cfg = Config.fromfile(ROOT / 'projects/lab/configs/toy' / 'mask-rcnn_elsa-swin-toy_fpn.py').model
    head = cfg.roi_head
    head.bbox_head.num_classes = head.mask_head.num_classes = 3
    head.mask_head.class_agnostic = class_agnostic
    cfg.test_cfg.rcnn.update(mask_thr_binary=threshold, score_thr=0.0, max_per_img=6)
    if kind == 'cascade':
        head.update(type='CascadeRoIHead', num_stages=2, stage_loss_weights=[1, 1], bbox_head=[head.bbox_head] * 2)
    cfg.train_cfg = None
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg).eval()
    for name, module in model.roi_head.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.002 if 'fc_reg' in name else 0.03)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.2)
    return model


def batch(scale, flip=None, images=2):
    """One view of each image of a batch."""
    h, w = (round(side * scale) for side in SIZE)
    pixels = 255 * torch.rand(images, 3, 6, 8, generator=torch.Generator().manual_seed(1))
    pixels = nn.functional.interpolate(pixels, (h, w), mode='bicubic').clamp(0, 255)
    pixels = pixels.flip(dict(horizontal=[3], vertical=[2], diagonal=[2, 3]).get(flip, []))
    meta = dict(ori_shape=SIZE, img_shape=(h, w), scale_factor=(w / SIZE[1], h / SIZE[0]))
    meta.update(flip=flip is not None, flip_direction=flip)
    return dict(inputs=list(pixels), data_samples=[DetDataSample(metainfo=meta) for _ in pixels])


def collate(views):
    return {key: [view[key] for view in views] for key in views[0]}


def predictions(model, data):
    with torch.no_grad():
        return [sample.pred_instances for sample in model.test_step(data)]


def assert_same(found, expected):
    for key in ('bboxes', 'scores', 'labels', 'masks'):
        assert torch.equal(found[key], expected[key]), key


@torch.no_grad()
def maps_of(model, views):
    return [model.extract_feat(model.data_preprocessor(view, False)['inputs']) for view in views]


@torch.no_grad()
def mask_of_one_box(model, views, features, image, box, label):
    """The probability of a mask, averaged over views and stages and pasted into the image."""
    head, total, count = model.roi_head, 0, 0
    stages = zip(head.mask_roi_extractor, head.mask_head) if hasattr(head, 'num_stages') else None
    stages = list(stages or [(head.mask_roi_extractor, head.mask_head)])
    for view, maps in zip(views, features):
        meta = view['data_samples'][image].metainfo
        x1, y1, x2, y2 = box.tolist()
        (height, width), (scale_x, scale_y) = meta['img_shape'], meta['scale_factor']
        x1, y1, x2, y2 = x1 * scale_x, y1 * scale_y, x2 * scale_x, y2 * scale_y
        axes = []
        if meta['flip_direction'] in ('horizontal', 'diagonal'):
            x1, x2 = width - x2, width - x1
            axes.append(1)
        if meta['flip_direction'] in ('vertical', 'diagonal'):
            y1, y2 = height - y2, height - y1
            axes.append(0)
        for extractor, mask_head in stages:
            logits = mask_head(extractor(maps, torch.tensor([[image, x1, y1, x2, y2]])))[0]
            total, count = total + logits[0 if mask_head.class_agnostic else label].sigmoid().flip(axes), count + 1
    return _do_paste_mask((total / count)[None, None], box[None], *SIZE, skip_empty=False)[0][0]


@pytest.mark.parametrize('kind', ['cascade', pytest.param('mask-rcnn', marks=pytest.mark.slow)])
def test_views_are_merged_as_in_a_loop(kind):
    """Boxes are those of DetTTAModel. The mask of a box is the mean of its masks in all views and stages."""
    model = detector(kind)
    views = [batch(scale, flip) for scale in SCALES for flip in (None, 'horizontal')]
    without = deepcopy(model)
    without.roi_head.mask_head = None
    expected = predictions(DetTTAModel(module=without, tta_cfg=Config(TTA)), collate(deepcopy(views)))
    found = predictions(MaskTTAModel(module=model, tta_cfg=Config(TTA)), collate(deepcopy(views)))
    features = maps_of(model, views)
    for image, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert len(one) == 6 and one.masks.float().std() > 5
        for key in ('bboxes', 'scores', 'labels'):
            assert torch.equal(one[key], other[key])
        for box, label, mask in zip(one.bboxes, one.labels, one.masks, strict=True):
            loop = 255 * mask_of_one_box(model, views, features, image, box, label)
            assert (mask - loop).abs().max() < 1.1  # whole numbers, rounded down


@pytest.mark.parametrize('flip', ['horizontal', 'vertical', 'diagonal'])
def test_flipped_views(flip):
    """Masks are flipped back, for each direction of a flip. Here the mask head is class-agnostic."""
    model = detector('mask-rcnn', class_agnostic=True)
    view = batch(1, flip, images=1)
    (found,) = predictions(MaskTTAModel(module=model, tta_cfg=Config(TTA)), collate([deepcopy(view)]))
    features = maps_of(model, [view])
    for box, mask in zip(found.bboxes[:3], found.masks, strict=False):
        assert (mask - 255 * mask_of_one_box(model, [view], features, 0, box, 0)).abs().max() < 1.1


@pytest.mark.parametrize('kind', ['mask-rcnn', 'cascade'])
def test_one_view_is_the_ordinary_test(kind):
    """One view gives the result of the ordinary test to the last bit. The same view twice gives it up to rounding."""
    model = detector(kind, threshold=0.5)
    tta = MaskTTAModel(module=model, tta_cfg=Config(TTA))
    expected = predictions(model, batch(1.5))
    twice = predictions(tta, collate([batch(1.5), batch(1.5)]))
    for one, two, other in zip(predictions(tta, collate([batch(1.5)])), twice, expected, strict=True):
        assert other.masks.any() and not other.masks.all()
        assert_same(one, other)
        torch.testing.assert_close(two.bboxes, other.bboxes, atol=1e-3, rtol=0)
        assert torch.equal(two.labels, other.labels) and (two.masks != other.masks).float().mean() < 1e-3


@pytest.mark.parametrize('kind', ['mask-rcnn', 'cascade'])
def test_images_without_detections(kind):
    """An image without detections gets no masks, also if the other image of the batch has detections."""
    model = detector(kind)
    tta = MaskTTAModel(module=model, tta_cfg=Config(TTA))
    views = [batch(1), batch(1, 'horizontal')]
    best = [one.scores.max() for one in predictions(tta, collate(deepcopy(views)))]
    for threshold in (sum(best).item() / 2, 1.0):
        model.roi_head.test_cfg.score_thr = threshold
        found = predictions(tta, collate(deepcopy(views)))
        assert sorted(len(one) > 0 for one in found) == [False, threshold < 1]
        assert all(one.masks.shape == (len(one), *SIZE) for one in found)


def test_detectors_without_masks():
    """Detectors without masks get the boxes of DetTTAModel."""
    model = detector('mask-rcnn')
    model.roi_head.mask_head = None
    views = collate([batch(1), batch(1.5)])
    one, other = (
        predictions(cls(module=model, tta_cfg=Config(TTA)), deepcopy(views))[0] for cls in (MaskTTAModel, DetTTAModel)
    )
    assert 'masks' not in one and torch.equal(one.bboxes, other.bboxes)


@pytest.mark.parametrize(
    'config',
    [
        'htc/htc_r50_fpn_1x_coco',
        'ms_rcnn/ms-rcnn_r50_fpn_1x_coco',
        'point_rend/point-rend_r50-caffe_fpn_ms-1x_coco',
        'condinst/condinst_r50_fpn_ms-poly-90k_coco_instance',
        'mask2former/mask2former_r50_8xb2-lsj-50e_coco',
    ],
)
def test_other_masks_are_refused(config):
    """Detectors that predict masks in another way are refused, by enable_tta and by the model."""
    cfg = get_config(f'mmdet::{config}.py')
    cfg.update(tta_model=dict(type='MaskTTAModel', tta_cfg=TTA), tta_pipeline=[])
    message = 'masks of .* cannot be merged over several views.*leave out --tta'
    with pytest.raises(InputError, match=message):
        enable_tta(deepcopy(cfg))
    with torch.device('meta'), DefaultScope.overwrite_default_scope('mmdet'):
        module = MODELS.build(cfg.model)
    with pytest.raises(InputError, match=message):
        model = MaskTTAModel(module=module, tta_cfg=Config(TTA))
        # MMDetection does not say that Mask2Former has masks.
        model.merge_preds([[DetDataSample(pred_instances=InstanceData(masks=torch.zeros(1, 4, 4)))]])
