# A segmentor with narrow heads for the toy ADE20K.
_base_ = [
    './_base_/elsa-swin-toy.py',
    '../../../../configs/_base_/models/upernet.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../../../../configs/_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=_base_.backbone,
    decode_head=dict(in_channels=_base_.in_channels, channels=64, dropout_ratio=0.0),
    auxiliary_head=None,  # its maps of 150 classes would cost as much as the rest
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
