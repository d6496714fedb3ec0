_base_ = ['./_base_/swin-t.py', '../_base_/recipes/retinanet_fpn_1x_coco.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.2), neck=dict(in_channels=_base_.in_channels[1:]))
