_base_ = ['../elsa_volo/_base_/elsa-volo-d1.py', './_base_/dinov2-b.py', './_base_/8xb128-200e.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(0, 2, 3), drop_path_rate=0.1))
