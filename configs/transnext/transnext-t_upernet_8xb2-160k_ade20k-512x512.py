_base_ = ['./_base_/transnext-t.py', './_base_/upernet.py']
model = dict(
    backbone=dict(_base_.pretrained, img_size=512, drop_path_rate=0.4),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
