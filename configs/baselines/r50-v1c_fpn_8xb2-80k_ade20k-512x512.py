_base_ = ['./_base_/r50-v1c.py', '../_base_/recipes/fpn_80k_ade20k.py']
model = dict(backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm), neck=dict(in_channels=_base_.in_channels))
