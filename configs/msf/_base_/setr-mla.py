# Table 7.
_base_ = [
    '../../_base_/models/setr-mla.py',
    '../../_base_/datasets/ade20k.py',
    '../../_base_/schedules/ade20k_160k_setr.py',
    '../../_base_/seg_runtime.py',
]
# of 12 blocks; 5, 11, 17, 23 of ViT-L's 24
model = dict(backbone=dict(out_indices=(2, 5, 8, 11)), neck=dict(in_channels=[384] * 4))
