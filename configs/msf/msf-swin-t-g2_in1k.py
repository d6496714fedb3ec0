_base_ = './msf-swin-t_in1k.py'
model = dict(backbone=dict(groups=2))
