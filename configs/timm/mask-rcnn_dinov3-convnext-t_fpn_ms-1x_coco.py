_base_ = '../_base_/recipes/mask-rcnn_fpn_ms-1x_coco.py'
name = 'convnext_tiny.dinov3_lvd1689m'  # or another one of timm.list_pretrained()
model = dict(
    backbone=dict(
        type='mmattn.TimmBackbone',
        name=name,
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint=f'timm:{name}'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
