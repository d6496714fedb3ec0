# Trained without mixed precision.
_base_ = ['./_base_/dinat-l.py', './_base_/upernet_640.py']
model = dict(
    backbone=dict(_base_.pretrained, dilations=_base_.dilations.ade20k_640, drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
optim_wrapper = dict(type='OptimWrapper')
