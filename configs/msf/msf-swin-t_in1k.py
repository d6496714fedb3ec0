_base_ = './_base_/msf-swin_in1k.py'
model = dict(backbone=dict(arch='tiny', drop_path_rate=0.2))
