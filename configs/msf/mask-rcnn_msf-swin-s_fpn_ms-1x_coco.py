# Not in the paper: ELSA-Swin's recipe, with MMDetection's drop path for Swin.
_base_ = ['./_base_/msf-swin-s.py', '../_base_/recipes/mask-rcnn_fpn_ms-1x_coco.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.2), neck=dict(in_channels=_base_.in_channels))
