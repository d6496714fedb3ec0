_base_ = ['./_base_/msf-vit-s-g2.py', './_base_/vit_inat2019.py']
model = dict(backbone=_base_.backbone, head=dict(in_channels=_base_.in_channels[-1]))
load_from = _base_.pretrained.init_cfg.checkpoint
