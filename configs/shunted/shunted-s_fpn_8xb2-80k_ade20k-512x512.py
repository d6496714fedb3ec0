_base_ = [
    './_base_/shunted-s.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, drop_path_rate=0.2),
    neck=dict(in_channels=_base_.in_channels),
)
