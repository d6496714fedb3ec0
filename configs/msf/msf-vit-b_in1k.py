_base_ = './_base_/msf-vit_in1k.py'
model = dict(backbone=dict(arch='base'), head=dict(in_channels=768))
