_base_ = './gsa-r50-all_in1k.py'
model = dict(backbone=dict(depth=38))
