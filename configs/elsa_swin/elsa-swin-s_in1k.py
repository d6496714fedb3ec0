# The ImageNet classifier of table 6, which the released weights belong to.
_base_ = ['./_base_/elsa-swin-s.py', '../_base_/classifier.py']
model = dict(
    backbone=dict(_base_.backbone, out_indices=(3,), shift_small_maps=False, drop_path_rate=0.3),
    head=dict(in_channels=_base_.in_channels[-1]),
)
