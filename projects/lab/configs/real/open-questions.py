# What the papers leave open, on Tiny ImageNet: one epoch from scratch.
_base_ = ['./_base_/tiny-imagenet.py', '../_base_/open-questions.py']
model = dict(backbone=_base_.models['msf'], head=dict(in_channels=80))
steps, warm_up = 780, 78
param_scheduler = [dict(_base_.rise, end=warm_up), dict(_base_.fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps // 2)
