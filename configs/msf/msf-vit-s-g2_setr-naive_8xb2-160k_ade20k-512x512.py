_base_ = ['./_base_/msf-vit-s-g2.py', './_base_/setr-naive.py']
model = dict(backbone=_base_.pretrained)
