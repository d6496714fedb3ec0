_base_ = ['./_base_/msf-vit-s.py', './_base_/setr-pup.py']
model = dict(backbone=_base_.pretrained)
