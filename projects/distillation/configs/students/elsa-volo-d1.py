_base_ = ['../../../../configs/elsa_volo/_base_/elsa-volo-d1.py', '../_base_/rows.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(0, 2, 3), drop_path_rate=0.1))
