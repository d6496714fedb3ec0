# SETR with progressive upsampling.
_base_ = './setr-naive_msf-vit-s.py'

model = dict(
    decode_head=dict(num_convs=4, up_scale=2, kernel_size=3),
    auxiliary_head=[
        dict(
            type='SETRUPHead',
            in_channels=384,
            channels=256,
            in_index=i,
            num_classes=150,
            dropout_ratio=0,
            norm_cfg=_base_.norm_cfg,
            num_convs=2,
            up_scale=4,
            kernel_size=3,
            align_corners=False,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4)) for i in range(3)
    ])
