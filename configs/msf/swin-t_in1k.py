# The paper's baseline.
_base_ = './msf-swin-t_in1k.py'
model = dict(backbone=dict(attention='plain'))
