# Semantic FPN.
_base_ = [
    './_base_/elsa-volo-toy.py',
    '../../../../configs/_base_/models/semantic-fpn.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../../../../configs/_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(_base_.volo, img_size=128),
    neck=[_base_.pyramid, dict(_base_.model.neck, in_channels=[64, 64, 64, 64], out_channels=64)],
    decode_head=dict(in_channels=[64, 64, 64, 64], channels=64, dropout_ratio=0.0),
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
