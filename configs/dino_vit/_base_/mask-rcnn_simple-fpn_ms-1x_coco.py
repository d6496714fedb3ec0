# ViTDet's simple feature pyramid, and its heads without their norms, with this repository's schedule of 12 epochs
# instead of ViTDet's 100.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../../_base_/datasets/coco_instance_ms.py',
    '../../_base_/schedules/coco_1x.py',
    './layer_decay.py',
    '../../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_delete_=True, drop_path_rate=0.1),
    neck=dict(_delete_=True, type='mmattn.detection.SimpleFeaturePyramid'),
    rpn_head=dict(num_convs=2),
    roi_head=dict(bbox_head=dict(type='Shared4Conv1FCBBoxHead')),
)
optim_wrapper = _base_.layer_decay
