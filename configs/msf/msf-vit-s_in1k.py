# The ImageNet classifier of table 6.
_base_ = ['./_base_/msf-vit-s.py', '../_base_/classifier.py']
model = dict(backbone=_base_.backbone, head=dict(type='NormLinearClsHead', in_channels=_base_.in_channels[-1]))
