# Not in the paper: MMSegmentation's recipe for ViT-S.
_base_ = [
    './_base_/msf-vit-s.py',
    './_base_/pyramid.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, **_base_.settings, drop_path_rate=0.1),
    neck=dict(_base_.pyramid, norm_cfg=_base_.sync_norm),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_index=3, in_channels=_base_.in_channels[3]),
)
