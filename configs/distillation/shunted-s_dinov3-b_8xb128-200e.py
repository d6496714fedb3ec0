_base_ = ['../shunted/_base_/shunted-s.py', './_base_/dinov3-b.py', './_base_/8xb128-200e.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(1, 2, 3), drop_path_rate=0.1))
