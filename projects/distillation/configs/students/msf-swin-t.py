_base_ = ['../../../../configs/msf/_base_/msf-swin-t.py', '../_base_/rows.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(1, 2, 3), drop_path_rate=0.1))
