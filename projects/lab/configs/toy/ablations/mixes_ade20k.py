# Mixes of mechanisms as Semantic FPNs on the toy ADE20K. MMATTN_ROW=conv-gsa in the environment chooses a row.
_base_ = ['./_base_/mixes.py', '../compare/_base_/tasks/segmentor.py']
model = dict(backbone=_base_.backbone, neck=dict(in_channels=[24, 48, 96, 192]))
