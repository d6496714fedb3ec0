_base_ = ['./_base_/dinat-b.py', './_base_/upernet.py']
model = dict(
    backbone=dict(_base_.pretrained, dilations=_base_.dilations.ade20k, drop_path_rate=0.5),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
