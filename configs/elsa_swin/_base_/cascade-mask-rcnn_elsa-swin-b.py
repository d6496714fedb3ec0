_base_ = './cascade-mask-rcnn_elsa-swin-t.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='checkpoints/elsa_swin_base.pth')),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
