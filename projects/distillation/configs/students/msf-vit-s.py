_base_ = ['../../../../configs/msf/_base_/msf-vit-s.py', '../_base_/rows.py']
model = dict(backbone=dict(_base_.backbone, out_indices=(5, 8, 11), final_norm=True, drop_path_rate=0.1))
