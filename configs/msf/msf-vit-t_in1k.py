_base_ = './msf-vit-s_in1k.py'
model = dict(backbone=dict(arch='tiny'), head=dict(in_channels=192))
