# A narrow ELSA-Swin and heads: trains from scratch on the toy ADE20K in minutes on a CPU.
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type='ELSASwin',
        arch=dict(embed_dim=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), group_width=4),
        drop_path_rate=0.0,
        init_cfg=None,  # PyTorch's initialisation: Swin's weights are too small for so narrow a model
    ),
    decode_head=dict(in_channels=[32, 64, 128, 256], channels=64, dropout_ratio=0.0),
    auxiliary_head=None,  # its maps of 150 classes would cost as much as the rest
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
