# The weights of DINOv3 stay as they are: only neck and heads learn.
_base_ = './mask-rcnn_dinov3_simple-fpn_ms-1x_coco.py'
model = dict(backbone=_base_.frozen)
