_base_ = './msf-vit-s_setr-mla_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(groups=2, init_cfg=_base_.pretrained_g2))
