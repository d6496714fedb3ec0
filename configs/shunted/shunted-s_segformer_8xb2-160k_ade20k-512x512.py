_base_ = [
    './_base_/shunted-s.py',
    '../_base_/models/segformer.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_segformer.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.backbone, norm_cfg=_base_.sync_norm, drop_path_rate=0.1, init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels),
)
