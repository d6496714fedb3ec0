# Not in the paper.
_base_ = [
    './_base_/msf-vit-s_pyramid.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(backbone=_base_.backbone, neck=[_base_.pyramid, dict(in_channels=_base_.in_channels, **_base_.model.neck)])
