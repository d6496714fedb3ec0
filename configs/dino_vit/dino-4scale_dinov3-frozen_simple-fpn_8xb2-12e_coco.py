# The weights of DINOv3 stay as they are: only neck and detector learn.
_base_ = './dino-4scale_dinov3_simple-fpn_8xb2-12e_coco.py'
model = dict(backbone=_base_.frozen)
