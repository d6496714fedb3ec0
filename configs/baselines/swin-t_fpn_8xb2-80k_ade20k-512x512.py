_base_ = ['./_base_/swin-t.py', '../_base_/recipes/fpn_80k_ade20k.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.2), neck=dict(in_channels=_base_.in_channels))
