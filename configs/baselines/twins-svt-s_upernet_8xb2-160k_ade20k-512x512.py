# Table 5 of Shunted and table 8 of ELSA, UperNet: Twins-SVT with MMSegmentation's drop path. Swin is in elsa_swin.
_base_ = [
    './_base_/twins-svt-s.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, drop_path_rate=0.2),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
