_base_ = './_base_/pvtv2_in1k.py'
model = dict(backbone=dict(arch=dict(embed_dims=(32, 64, 160, 256), depths=(2, 2, 2, 2))), head=dict(in_channels=256))
