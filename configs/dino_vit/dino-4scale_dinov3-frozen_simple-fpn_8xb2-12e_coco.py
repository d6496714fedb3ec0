# DINOv3 is frozen: only the neck and the head are trained.
_base_ = './dino-4scale_dinov3_simple-fpn_8xb2-12e_coco.py'
model = dict(backbone=_base_.frozen)
