# Not in the paper: MMSegmentation's recipe for ViT-S.
_base_ = [
    './_base_/msf-vit-s_pyramid.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=_base_.backbone,
    neck=_base_.pyramid,
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=384),
)
