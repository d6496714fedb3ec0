_base_ = ['./_base_/dinov3-b.py', './_base_/dino-4scale_simple-fpn_12e_coco.py']
model = dict(backbone=_base_.pretrained, neck=dict(in_channels=_base_.channels))
