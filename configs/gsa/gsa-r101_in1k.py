# Not in the paper: attention in groups 2 to 4, for the detector.
_base_ = './gsa-r50_in1k.py'
model = dict(backbone=dict(depth=101))
