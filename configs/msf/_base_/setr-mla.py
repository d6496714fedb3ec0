# SETR with multi-level feature aggregation.
_base_ = './setr-naive.py'

model = dict(
    backbone=dict(out_indices=(2, 5, 8, 11)),  # of 12 blocks; 5, 11, 17, 23 of ViT-L's 24
    neck=dict(
        type='MLANeck', in_channels=[384] * 4, out_channels=256, norm_cfg=_base_.sync_norm, act_cfg=dict(type='ReLU')
    ),
    decode_head=dict(
        _delete_=True,
        type='SETRMLAHead',
        in_channels=(256, 256, 256, 256),
        channels=512,
        in_index=(0, 1, 2, 3),
        num_classes=150,
        dropout_ratio=0,
        mla_channels=128,
        norm_cfg=_base_.sync_norm,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=[
        dict(
            type='FCNHead',
            in_channels=256,
            channels=256,
            in_index=i,
            num_classes=150,
            dropout_ratio=0,
            norm_cfg=_base_.sync_norm,
            num_convs=0,
            kernel_size=1,
            concat_input=False,
            align_corners=False,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4),
        )
        for i in range(4)
    ],
)
