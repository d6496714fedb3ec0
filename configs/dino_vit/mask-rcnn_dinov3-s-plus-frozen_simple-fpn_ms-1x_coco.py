_base_ = './mask-rcnn_dinov3-s-plus_simple-fpn_ms-1x_coco.py'
model = dict(backbone=_base_.frozen)
