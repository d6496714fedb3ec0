# Not in the paper. From Tiny to Small the rate rises from 0.1 to 0.2, and in pre-training from 0.1 to 0.3, with 0.5 for
# Base. Base gets 0.3 here.
_base_ = [
    './_base_/elsa-swin-b.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, drop_path_rate=0.3, init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
