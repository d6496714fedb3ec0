_base_ = ['./_base_/dinat_s-l.py', './_base_/in1k_l.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.35), head=dict(in_channels=_base_.in_channels[-1]))
