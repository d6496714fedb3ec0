# Attention in groups 2 to 4, the best row of table 5.
_base_ = ['./_base_/gsa-r50.py', '../_base_/classifier.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(3,)), head=dict(in_channels=_base_.in_channels[-1]))
