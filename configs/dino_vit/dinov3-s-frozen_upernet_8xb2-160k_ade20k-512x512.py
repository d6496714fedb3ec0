_base_ = './dinov3-s_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=_base_.frozen)
