_base_ = ['./_base_/vit-s.py', './_base_/setr-naive.py']
model = dict(backbone=_base_.pretrained)
