_base_ = ['./_base_/transnext-s.py', './_base_/mask2former.py']
model = dict(
    backbone=dict(_base_.pretrained, img_size=512, drop_path_rate=0.5), decode_head=dict(in_channels=_base_.in_channels)
)
