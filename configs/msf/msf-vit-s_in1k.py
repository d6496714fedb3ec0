_base_ = './_base_/msf-vit_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=384))
