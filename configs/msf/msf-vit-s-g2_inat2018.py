_base_ = './msf-vit-s_inat2018.py'
model = dict(backbone=dict(groups=2))
load_from = _base_.pretrained_g2.checkpoint
