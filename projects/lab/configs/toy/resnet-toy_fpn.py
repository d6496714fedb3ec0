# GSA-ResNet without attention, to compare with.
_base_ = './gsa-resnet-toy_fpn.py'
model = dict(backbone=dict(gsa_stages=()))
