# Not in the paper. Drop path between UperNet's 0.3 at twice the steps and the 0.1 of the short detection schedule.
_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(
        type='ELSASwin',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/elsa_swin_tiny.pth'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
