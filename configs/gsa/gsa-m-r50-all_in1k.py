# GSA-M-ResNet-50 of table 3.
_base_ = './gsa-r50-all_in1k.py'
model = dict(backbone=dict(depth='m50'), head=dict(in_channels=1152))
