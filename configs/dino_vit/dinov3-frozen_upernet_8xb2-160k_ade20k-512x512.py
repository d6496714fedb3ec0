# DINOv3 is frozen: only the neck and the heads are trained.
_base_ = './dinov3_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=_base_.frozen)
