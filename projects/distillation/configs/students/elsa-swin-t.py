_base_ = ['../../../../configs/elsa_swin/_base_/elsa-swin-t.py', '../_base_/rows.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(1, 2, 3), drop_path_rate=0.1))
