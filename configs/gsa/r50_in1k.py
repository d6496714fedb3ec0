# The plain ResNet-50 that the paper compares with.
_base_ = './gsa-r50_in1k.py'
model = dict(backbone=dict(gsa_stages=()))
