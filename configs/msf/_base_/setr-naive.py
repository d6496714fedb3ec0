# SETR with its naive heads for ViT-S, as MMSegmentation has them for ViT-L; the backbone is to be added.
_base_ = '../../_base_/models/segmentor.py'

model = dict(
    backbone=dict(out_indices=(4, 7, 9, 11)),  # of 12 blocks; 9, 14, 19, 23 of ViT-L's 24
    decode_head=dict(
        type='SETRUPHead',
        in_channels=384,
        channels=256,
        in_index=3,
        num_classes=150,
        dropout_ratio=0,
        norm_cfg=_base_.sync_norm,
        num_convs=1,
        up_scale=4,
        kernel_size=1,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=[
        dict(
            type='SETRUPHead',
            in_channels=384,
            channels=256,
            in_index=i,
            num_classes=150,
            dropout_ratio=0,
            norm_cfg=_base_.sync_norm,
            num_convs=2,
            up_scale=4,
            kernel_size=1,
            align_corners=False,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4),
        )
        for i in range(3)
    ],
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
