_base_ = './_base_/cnn_in1k.py'
model = dict(backbone=dict(type='ResNet', depth=50))
