_base_ = ['../msf/_base_/msf-swin-t.py', './_base_/dinov2-b.py', './_base_/1xb128-100e.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(1, 2, 3), drop_path_rate=0.1))
