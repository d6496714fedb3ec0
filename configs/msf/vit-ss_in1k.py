# The paper's baseline.
_base_ = './msf-vit-ss_in1k.py'
model = dict(backbone=dict(attention='plain'))
