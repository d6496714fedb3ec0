_base_ = ['./_base_/nat-m.py', './_base_/mask-rcnn.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.2), neck=dict(in_channels=_base_.in_channels))
