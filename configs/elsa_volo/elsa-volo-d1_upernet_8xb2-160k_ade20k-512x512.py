# Not in ELSA's paper. The recipe is that of VOLO's paper for UperNet: AdamW, 6e-5, weight decay 0.01, 160k steps of 16.
# VOLO's segmentors were not released. The pyramid is ours, and drop path is that of the classifier.
_base_ = [
    './_base_/elsa-volo-d1.py',
    './_base_/pyramid.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, drop_path_rate=0.1),
    neck=_base_.pyramid,
    decode_head=dict(in_channels=[_base_.pyramid.out_channels] * 4),
    auxiliary_head=dict(in_channels=_base_.pyramid.out_channels),
)
