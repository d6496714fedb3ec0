# Semantic FPN.
_base_ = ['./shunted-toy_fpn.py', './_base_/transnext-toy.py']
model = dict(backbone=dict(_base_.transnext, _delete_=True))
