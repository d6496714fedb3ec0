_base_ = './_base_/cnn_in1k.py'
model = dict(backbone=dict(type='EfficientNet', arch='b0', drop_path_rate=0.2), head=dict(in_channels=1280))
