# Mixes of token mixers as Semantic FPNs on the toy ADE20K.
_base_ = ['./_base_/mixes.py', '../compare/_base_/tasks/segmentor.py']
rows = {name: dict(model=dict(backbone=dict(backbone, _delete_=True))) for name, backbone in _base_.models.items()}
model = dict(backbone=_base_.models['swin'], neck=dict(in_channels=[24, 48, 96, 192]))
