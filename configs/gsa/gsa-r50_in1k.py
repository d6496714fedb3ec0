# Attention in groups 2 to 4, the best row of table 5.
_base_ = ['./_base_/gsa-r50.py', './_base_/in1k.py']
model = dict(backbone=_base_.backbone, head=dict(in_channels=_base_.in_channels[-1]))
