# GSA-ResNet-50 of the paper: attention in all groups.
_base_ = './gsa-r50_in1k.py'
model = dict(backbone=dict(gsa_stages=(0, 1, 2, 3)))
