_base_ = ['./_base_/transnext-s.py', './_base_/dino-5scale.py']
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, img_size=800, drop_path_rate=0.5),
    neck=dict(in_channels=_base_.in_channels),
)
