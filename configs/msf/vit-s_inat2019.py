# The paper's baseline.
_base_ = './msf-vit-s_inat2019.py'
model = dict(backbone=dict(attention='plain'))
load_from = _base_.pretrained_plain.checkpoint
