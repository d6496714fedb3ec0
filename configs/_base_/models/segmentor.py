# What the segmentors for ADE20K share.
_base_ = '../sync_norm.py'

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
