# The ImageNet classifier of table 2, which the released weights belong to.
_base_ = ['./_base_/shunted-b.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.3), head=dict(in_channels=_base_.in_channels[-1]))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
