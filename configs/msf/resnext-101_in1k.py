# The groups have 8 channels, as the printed parameters.
_base_ = './_base_/cnn_in1k.py'
model = dict(backbone=dict(type='ResNeXt', depth=101, groups=32, width_per_group=8))
