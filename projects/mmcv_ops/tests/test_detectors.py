"""Detectors of MMDetection find the same with the stand-in as with compiled MMCV, and train the same."""

import copy
import functools
from pathlib import Path

import pytest
import torch

mmdet = pytest.importorskip('mmdet')

from mmdet.registry import MODELS  # noqa: E402
from mmdet.testing import demo_mm_inputs  # noqa: E402
from mmdet.utils import register_all_modules  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.model import revert_sync_batchnorm  # noqa: E402
from mmengine.optim import OptimWrapper  # noqa: E402

from .test_operators import COMPILED, stand_in  # noqa: E402, F401

CONFIGS = {
    'Mask R-CNN': 'mask_rcnn/mask-rcnn_r50_fpn_1x_coco',
    'Cascade Mask R-CNN': 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco',
    'Mask R-CNN with DCN': 'dcn/mask-rcnn_r50-dconv-c3-c5_fpn_1x_coco',
    'Mask R-CNN with DCNv2': 'dcnv2/mask-rcnn_r50-mdconv-c3-c5_fpn_1x_coco',
    'RetinaNet': 'retinanet/retinanet_r50_fpn_1x_coco',
    'RTMDet': 'rtmdet/rtmdet_tiny_8xb32-300e_coco',
    'Deformable DETR': 'deformable_detr/deformable-detr_r50_16xb2-50e_coco',
    'DINO': 'dino/dino-4scale_r50_8xb2-12e_coco',
    'Mask2Former': 'mask2former/mask2former_r50_8xb2-lsj-50e_coco',
}


@functools.cache
def model_config(name):
    cfg = Config.fromfile(Path(mmdet.__file__).parent / '.mim' / 'configs' / f'{CONFIGS[name]}.py').model
    cfg.backbone.init_cfg = None
    return cfg


def build(name):
    """A detector with random weights, which finds objects whatever their scores are."""
    cfg = model_config(name)
    cfg.data_preprocessor.batch_augments = None
    if 'num_queries' in cfg:
        cfg.num_queries = 50
    for proposals in (cfg.test_cfg.get('rpn'), (cfg.get('train_cfg') or {}).get('rpn_proposal')):
        if proposals:
            proposals.update(nms_pre=100, max_per_img=50)
    test_cfg = cfg.test_cfg.get('rcnn', cfg.test_cfg)
    if 'score_thr' in test_cfg:
        test_cfg.score_thr = 0.0
    test_cfg.max_per_img = 10
    torch.manual_seed(0)
    detector = revert_sync_batchnorm(MODELS.build(copy.deepcopy(cfg)))  # DETRs write to their config
    detector.init_weights()
    return detector


def results(name):
    """Boxes, scores and labels in two images before and after two steps of training, and the losses of the steps."""
    detector = build(name)
    batch = demo_mm_inputs(2, [(3, 96, 128), (3, 80, 64)], num_items=[3, 2], num_classes=80, with_mask='Mask' in name)
    wrapper = OptimWrapper(torch.optim.SGD(detector.parameters(), lr=1e-4))
    found = []

    def detect():
        with torch.no_grad():
            for sample in detector.eval().test_step(batch):
                objects = sample.pred_instances
                found.extend([objects.bboxes, objects.scores, objects.labels, objects.get('masks', objects.labels)])

    detect()
    losses = [detector.train().train_step(batch, wrapper) for _ in range(2)]
    detect()
    return found, [{key: value.item() for key, value in step.items()} for step in losses]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason='MMCV is not compiled here')
@pytest.mark.parametrize('name', CONFIGS)
def test_a_detector_finds_and_learns_the_same(name, stand_in, monkeypatch):  # noqa: F811
    """From the same random weights. The attention of MMCV on the CPU is its own form in torch: the stand-in, which MMCV
    calls on a GPU, is put in its place."""
    register_all_modules()
    expected, losses = results(name)
    stand_in()
    calls = []

    def attend(value, shapes, locations, weights):
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

        keys = shapes.prod(1)
        calls.append(keys)
        starts = torch.cat([keys.new_zeros(1), keys.cumsum(0)[:-1]])
        return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)

    monkeypatch.setattr('mmcv.ops.multi_scale_deform_attn.multi_scale_deformable_attn_pytorch', attend)
    found, own_losses = results(name)
    assert bool(calls) == (name in ('Deformable DETR', 'DINO', 'Mask2Former'))
    assert own_losses == [pytest.approx(step, rel=1e-3, abs=1e-4) for step in losses]
    assert len(expected[0])
    for one, other in zip(found, expected):
        if one.dtype is torch.bool:  # masks: rounding moves their borders
            assert (one != other).float().mean() < 1e-4
        else:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
