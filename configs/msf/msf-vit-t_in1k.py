_base_ = './_base_/msf-vit_in1k.py'
model = dict(backbone=dict(arch='tiny'), head=dict(in_channels=192))
