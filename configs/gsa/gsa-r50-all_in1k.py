# Attention in all groups, the paper's GSA-ResNet-50.
_base_ = './gsa-r50_in1k.py'
model = dict(backbone=dict(gsa_stages=(0, 1, 2, 3)))
