# Not in the paper: ELSA-Swin's recipe.
_base_ = [
    './_base_/msf-vit-s.py',
    './_base_/pyramid.py',
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, **_base_.settings, drop_path_rate=0.1),
    neck=[dict(_base_.pyramid, norm_cfg=_base_.sync_norm), dict(_base_.model.neck, in_channels=_base_.in_channels)],
)
