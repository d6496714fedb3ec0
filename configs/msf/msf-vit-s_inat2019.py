# Table 7. The weights are those of 100 epochs on ImageNet; the paper does not say which.
_base_ = ['./_base_/msf-vit-s.py', './_base_/inat2019.py']
model = dict(backbone=_base_.backbone, head=dict(type='NormLinearClsHead', in_channels=_base_.in_channels[-1]))
load_from = _base_.pretrained.checkpoint
