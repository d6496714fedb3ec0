_base_ = ['./_base_/dinov3-l.py', './_base_/upernet_160k_ade20k.py']
model = dict(
    backbone=dict(_base_.pretrained, **_base_.quarters),
    neck=dict(embed_dim=_base_.channels),
    decode_head=dict(in_channels=[_base_.channels] * 4),
    auxiliary_head=dict(in_channels=_base_.channels),
)
