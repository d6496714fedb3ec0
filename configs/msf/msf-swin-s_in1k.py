_base_ = './_base_/msf-swin_in1k.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.3))
