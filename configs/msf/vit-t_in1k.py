# The paper's baseline.
_base_ = './msf-vit-t_in1k.py'
model = dict(backbone=dict(attention='plain'))
