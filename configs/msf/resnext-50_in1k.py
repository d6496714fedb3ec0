_base_ = './_base_/cnn_in1k.py'
model = dict(backbone=dict(type='ResNeXt', depth=50, groups=32, width_per_group=4))
