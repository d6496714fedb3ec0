_base_ = './msf-vit-s_in1k.py'
model = dict(backbone=dict(arch='base'), head=dict(in_channels=768))
