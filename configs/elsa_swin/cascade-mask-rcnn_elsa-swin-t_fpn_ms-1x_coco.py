_base_ = [
    './_base_/elsa-swin-t.py',
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, drop_path_rate=0.0, init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
