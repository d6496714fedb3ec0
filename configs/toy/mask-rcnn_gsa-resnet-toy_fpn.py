_base_ = './mask-rcnn_elsa-swin-toy_fpn.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='GSAResNet',
        depth=dict(depths=(1, 1, 2, 1), stem_channels=32, base_channels=16, expansion=2),
        num_heads=4,
        img_size=128,
    )
)
