# Not in the paper.
_base_ = [
    './_base_/msf-vit-s.py',
    './_base_/pyramid.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, **_base_.settings, drop_path_rate=0.1),
    neck=[dict(_base_.pyramid, norm_cfg=_base_.sync_norm), dict(_base_.model.neck, in_channels=_base_.in_channels)],
)
