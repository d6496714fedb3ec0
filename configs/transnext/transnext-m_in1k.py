_base_ = ['./_base_/transnext-m.py', './_base_/in1k.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.15), head=dict(in_channels=_base_.in_channels[-1]))
