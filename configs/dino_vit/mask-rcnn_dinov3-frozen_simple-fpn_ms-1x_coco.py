# DINOv3 is frozen: only the neck and the heads are trained.
_base_ = './mask-rcnn_dinov3_simple-fpn_ms-1x_coco.py'
model = dict(backbone=_base_.frozen)
