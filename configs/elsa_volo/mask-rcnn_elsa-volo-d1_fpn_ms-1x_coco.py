# Not in the paper: ELSA-Swin's recipe. The pyramid is ours.
_base_ = [
    './_base_/elsa-volo-d1.py',
    './_base_/pyramid.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/sync_norm.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, norm_cfg=_base_.sync_norm, drop_path_rate=0.1),
    neck=[_base_.pyramid, dict(_base_.model.neck, in_channels=[_base_.pyramid.out_channels] * 4)],
)
