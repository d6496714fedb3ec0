_base_ = ['./_base_/vit-s.py', './_base_/setr-mla.py']
model = dict(backbone=_base_.pretrained)
