_base_ = ['./_base_/swin-b.py', '../_base_/recipes/mask-rcnn_fpn_1x_coco.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.3), neck=dict(in_channels=_base_.in_channels))
