_base_ = [
    './_base_/shunted-toy.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/toy_coco_detection.py',
    '../_base_/schedules/toy_coco.py',
    '../../../../configs/_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.shunted, _delete_=True),
    neck=dict(in_channels=[32, 64, 128, 256], out_channels=64, start_level=0, add_extra_convs=False, num_outs=4),
    bbox_head=dict(
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        anchor_generator=dict(octave_base_scale=4, strides=[4, 8, 16, 32]),
    ),
)
default_hooks = dict(logger=dict(interval=10))
