_base_ = [
    './_base_/shunted-s.py',
    '../_base_/models/segformer.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_segformer.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, drop_path_rate=0.1),
    decode_head=dict(in_channels=_base_.in_channels),
)
