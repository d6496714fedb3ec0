_base_ = './r50_in1k.py'
model = dict(backbone=dict(depth=38))
