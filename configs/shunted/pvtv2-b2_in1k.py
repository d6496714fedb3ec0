_base_ = './_base_/pvtv2_in1k.py'
model = dict(backbone=dict(arch=dict(depths=(3, 4, 6, 3))))
