# ViTDet's simple feature pyramid, and its heads without their norms, with this repository's schedule of 12 epochs
# instead of ViTDet's 100.
_base_ = [
    './_base_/{{$MMATTN_ROW:dinov3-s}}.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    './_base_/layer_decay.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:dinov3-s}}'
rows = ['dinov3-s', 'dinov3-s-plus', 'dinov3-b', 'dinov3-l']
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, drop_path_rate=0.1, init_cfg=_base_.pretrained),
    neck=dict(_delete_=True, type='mmattn.detection.SimpleFeaturePyramid', in_channels=_base_.channels),
    rpn_head=dict(num_convs=2),
    roi_head=dict(bbox_head=dict(type='Shared4Conv1FCBBoxHead')),
)
optim_wrapper = _base_.layer_decay
