_base_ = [
    '../../../../configs/_base_/models/upernet.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../../../../configs/_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type='mmattn.MSFViT',
        arch=dict(embed_dim=96, depth=4, num_heads=3),
        patch_size=8,
        out_indices=(0, 1, 2, 3),
        final_norm=True,
    ),
    # to strides 4, 8, 16, 32
    neck=dict(type='Feature2Pyramid', embed_dim=96, rescales=[2, 1, 0.5, 0.25], norm_cfg=_base_.sync_norm),
    decode_head=dict(in_channels=[96, 96, 96, 96], channels=64, dropout_ratio=0.0),
    auxiliary_head=None,
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
