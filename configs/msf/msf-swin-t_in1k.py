# The ImageNet classifier of table 6.
_base_ = ['./_base_/msf-swin-t.py', '../_base_/classifier.py']
model = dict(
    backbone=dict(_base_.backbone, out_indices=(3,), shift_small_maps=False),
    head=dict(in_channels=_base_.in_channels[-1]),
)
