# Not in the paper, which has no segmentors.
_base_ = [
    './_base_/gsa-r50.py',
    './_base_/ade20k.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, **_base_.settings),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
