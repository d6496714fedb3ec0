_base_ = ['./_base_/shunted-b.py', '../_base_/sync_norm.py', '../_base_/recipes/mask-rcnn_fpn_ms-3x_coco.py']
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, drop_path_rate=0.3),
    neck=dict(in_channels=_base_.in_channels),
)
