# Not in the paper. Drop path lies between UperNet's 0.3 for twice the steps and Mask R-CNN's 0.1 for 12 epochs.
_base_ = [
    './_base_/elsa-swin-t.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.2), neck=dict(in_channels=_base_.in_channels))
