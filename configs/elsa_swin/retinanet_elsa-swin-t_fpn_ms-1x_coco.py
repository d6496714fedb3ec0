# Not in the paper: Mask R-CNN's recipe.
_base_ = [
    './_base_/elsa-swin-t.py',
    './_base_/decay.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, out_indices=(1, 2, 3), drop_path_rate=0.1),
    neck=dict(in_channels=_base_.in_channels[1:], start_level=0),
)
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
