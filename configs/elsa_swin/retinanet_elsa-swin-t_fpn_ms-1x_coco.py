# Not in the paper: Mask R-CNN's recipe.
_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(
        type='ELSASwin',
        arch='tiny',
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/elsa_swin_tiny.pth'),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
