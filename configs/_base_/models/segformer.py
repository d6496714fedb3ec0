# SegFormer's all-MLP decoder at the width of its larger models, for ADE20K's 150 classes; the backbone and the head's
# in_channels are to be added.
_base_ = './segmentor.py'

model = dict(
    decode_head=dict(
        type='SegformerHead',
        in_index=[0, 1, 2, 3],
        channels=768,  # B2 and up; MMSegmentation's own configs have 256 throughout
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=_base_.sync_norm,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    )
)
