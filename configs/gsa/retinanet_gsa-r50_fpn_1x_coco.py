# Not in the paper, as no detector is.
_base_ = [
    './_base_/gsa-r50_coco.py',
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(backbone=_base_.backbone, neck=dict(in_channels=_base_.in_channels, start_level=1))

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
