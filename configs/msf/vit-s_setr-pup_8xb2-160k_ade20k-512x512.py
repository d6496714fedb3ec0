_base_ = './msf-vit-s_setr-pup_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(attention='plain', init_cfg=_base_.pretrained_plain))
