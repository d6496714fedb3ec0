_base_ = './mask-rcnn_dinov3-l_simple-fpn_ms-1x_coco.py'
model = dict(backbone=_base_.frozen)
