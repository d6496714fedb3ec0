_base_ = '../../_base_/models/mask-rcnn_fpn.py'
model = dict(
    backbone=dict(
        type='ShuntedTransformer',
        arch='small',
        norm_cfg=dict(type='SyncBN'),
        # Not printed. The paper trains as Swin does, and MMDetection's Swin-T and -S have 0.2 in both schedules, which
        # is also what Small was pre-trained with.
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/ckpt_S.pth'),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
