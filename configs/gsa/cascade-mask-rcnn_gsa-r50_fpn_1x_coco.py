# Not in the paper, which has no detectors.
_base_ = [
    './_base_/gsa-r50.py',
    './_base_/coco.py',
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, norm_cfg=_base_.sync_norm, **_base_.settings),
    neck=dict(in_channels=_base_.in_channels),
)
