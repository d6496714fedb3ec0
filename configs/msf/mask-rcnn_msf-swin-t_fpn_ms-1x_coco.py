# Not in the paper: ELSA-Swin's recipe, with drop path as MMDetection has it for Swin.
_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(
        type='MSFSwin',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/swin_tiny_patch4_window7_224.pth', warm_start=True),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
