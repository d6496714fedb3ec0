_base_ = ['./_base_/nat-m.py', './_base_/upernet.py']
model = dict(
    backbone=dict(_base_.pretrained, drop_path_rate=0.2),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
