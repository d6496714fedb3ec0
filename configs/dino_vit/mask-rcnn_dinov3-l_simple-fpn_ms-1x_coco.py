_base_ = ['./_base_/dinov3-l.py', './_base_/mask-rcnn_simple-fpn_ms-1x_coco.py']
model = dict(backbone=_base_.pretrained, neck=dict(in_channels=_base_.channels))
