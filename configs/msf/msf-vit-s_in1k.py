_base_ = './msf-vit-t_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=384))
