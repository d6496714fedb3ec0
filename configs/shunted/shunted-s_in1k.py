# The ImageNet classifier of table 2, which the released weights belong to.
_base_ = ['./_base_/shunted-s.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.2), head=dict(in_channels=_base_.in_channels[-1]))
