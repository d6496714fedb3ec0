# Not in the paper. The pyramid is ours, and drop path is that of the classifier.
_base_ = [
    './_base_/elsa-volo-d1.py',
    './_base_/pyramid.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, drop_path_rate=0.1),
    neck=[_base_.pyramid, dict(_base_.model.neck, in_channels=[_base_.pyramid.out_channels] * 4)],
)
