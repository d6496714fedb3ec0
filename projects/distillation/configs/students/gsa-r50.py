_base_ = ['../../../../configs/gsa/_base_/gsa-r50.py', '../_base_/rows.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(1, 2, 3), img_size=1344))
