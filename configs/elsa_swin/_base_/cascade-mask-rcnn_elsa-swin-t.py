_base_ = '../../_base_/models/cascade-mask-rcnn_fpn.py'
model = dict(
    backbone=dict(
        type='ELSASwin', arch='tiny', init_cfg=dict(type='Pretrained', checkpoint='checkpoints/elsa_swin_tiny.pth')
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
