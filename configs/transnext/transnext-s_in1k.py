_base_ = ['./_base_/transnext-s.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.45), head=dict(in_channels=_base_.in_channels[-1]))
