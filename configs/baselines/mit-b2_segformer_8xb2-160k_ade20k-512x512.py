# Table 6 of Shunted. The decoder has 768 channels, as in SegFormer's paper. MMSegmentation's own config has 256.
_base_ = [
    './_base_/mit-b2.py',
    '../_base_/models/segformer.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_segformer.py',
    '../_base_/seg_runtime.py',
]
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.1), decode_head=dict(in_channels=_base_.in_channels))
