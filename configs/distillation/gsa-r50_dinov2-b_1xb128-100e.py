_base_ = ['../gsa/_base_/gsa-r50.py', './_base_/dinov2-b.py', './_base_/1xb128-100e.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(1, 2, 3), img_size=1344))
