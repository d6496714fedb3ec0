# The ImageNet classifier of table 6, which the released weights belong to. These are a moving average over the
# training.
_base_ = ['./_base_/elsa-swin-b.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.5), head=dict(in_channels=_base_.in_channels[-1]))
custom_hooks = [dict(type='EMAHook', momentum=8e-5, priority='ABOVE_NORMAL')]  # a decay of 0.99992
