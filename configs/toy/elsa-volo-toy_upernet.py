_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type='ELSAVOLO',
        arch=dict(embed_dim=48, depths=(2, 1, 1, 1), num_heads=(2, 4), stem_dim=32, mlp_ratio=3),
        img_size=128,
        drop_path_rate=0.0,
        init_cfg=None,  # PyTorch's initialisation: VOLO's weights are too small for so narrow a model
    ),
    # to strides 4, 8, 16, 32
    neck=dict(type='MultiLevelNeck', in_channels=[48, 96, 96, 96], out_channels=64, scales=[2, 2, 1, 0.5]),
    decode_head=dict(in_channels=[64, 64, 64, 64], channels=64, dropout_ratio=0.0),
    auxiliary_head=None,
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
