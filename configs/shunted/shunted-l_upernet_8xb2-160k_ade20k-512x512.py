# Not in the paper: the recipe of Small.
_base_ = [
    './_base_/shunted-l.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.backbone, norm_cfg=dict(type='SyncBN'), drop_path_rate=0.3, init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
