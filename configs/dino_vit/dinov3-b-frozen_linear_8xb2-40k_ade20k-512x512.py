_base_ = ['./_base_/dinov3-b.py', './_base_/linear_40k_ade20k.py']
model = dict(
    backbone=dict(_base_.pretrained, **_base_.frozen),
    decode_head=dict(in_channels=_base_.channels, channels=_base_.channels),
)
