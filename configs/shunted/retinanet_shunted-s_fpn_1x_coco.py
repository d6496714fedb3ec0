_base_ = [
    './_base_/shunted-s.py',
    '../_base_/sync_norm.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(
        _base_.pretrained, _delete_=True, out_indices=(1, 2, 3), norm_cfg=_base_.sync_norm, drop_path_rate=0.2
    ),
    neck=dict(in_channels=_base_.in_channels[1:], start_level=0),
)
