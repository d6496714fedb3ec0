# The weights of DINOv3 stay as they are: only neck and heads learn.
_base_ = './dinov3_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=_base_.frozen)
