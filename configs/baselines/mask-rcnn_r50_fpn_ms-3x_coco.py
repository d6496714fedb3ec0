_base_ = ['./_base_/r50.py', '../_base_/recipes/mask-rcnn_fpn_ms-3x_coco.py']
model = dict(
    backbone=dict(_base_.pretrained, frozen_stages=1, norm_eval=True), neck=dict(in_channels=_base_.in_channels)
)
