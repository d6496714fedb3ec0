_base_ = './msf-swin-s_in1k.py'
model = dict(backbone=dict(groups=2))
