_base_ = './dino-4scale_dinov3-s-plus_simple-fpn_8xb2-12e_coco.py'
model = dict(backbone=_base_.frozen)
