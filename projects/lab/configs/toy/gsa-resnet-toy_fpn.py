# Semantic FPN.
_base_ = ['./shunted-toy_fpn.py', './_base_/gsa-resnet-toy.py']
model = dict(backbone=dict(_base_.gsa_resnet, _delete_=True))
