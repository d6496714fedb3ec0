# The paper's baseline.
_base_ = './msf-vit-s_in1k.py'
model = dict(backbone=dict(attention='plain'))
