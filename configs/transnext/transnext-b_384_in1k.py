_base_ = ['./_base_/transnext-b.py', './_base_/in1k_384.py']
model = dict(backbone=dict(_base_.backbone, drop_path_rate=0.8), head=dict(in_channels=_base_.in_channels[-1]))
load_from = _base_.pretrained.init_cfg.checkpoint
