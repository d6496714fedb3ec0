# ResNet-50, which the paper compares with.
_base_ = './gsa-r50_in1k.py'
model = dict(backbone=dict(gsa_stages=()))
