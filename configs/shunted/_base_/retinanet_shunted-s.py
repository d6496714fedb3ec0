_base_ = '../../_base_/models/retinanet_fpn.py'
model = dict(
    backbone=dict(
        type='ShuntedTransformer',
        arch='small',
        out_indices=(1, 2, 3),
        norm_cfg=dict(type='SyncBN'),
        drop_path_rate=0.2,  # not printed; as under Mask R-CNN, and as MMDetection's Swin-T RetinaNet
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/ckpt_S.pth'),
    ),
    neck=dict(in_channels=[128, 256, 512]),
)
