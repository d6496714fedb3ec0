# Heads on the frozen ViT-S/14 on CamVid, in as many steps as projects/lab/configs/real/camvid.py. Images are enlarged
# to 504 x 378, which are 36 x 27 patches of 14 pixels. A row is a head.
_base_ = ['../camvid.py', './_base_/focus.py']
input_size = (504, 378)
linear = dict(
    _base_.void,
    _delete_=True,
    type='FCNHead',
    num_convs=0,
    concat_input=False,
    in_index=-1,
    in_channels=384,
    channels=384,
    dropout_ratio=0.0,
    num_classes=11,
    norm_cfg=None,
    align_corners=False,
    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0, avg_non_ignore=True),
)
pyramid = dict(
    type='mmattn.detection.SimpleFeaturePyramid', in_channels=384, out_channels=64, num_outs=4, _delete_=True
)
fpn = dict(neck=pyramid, decode_head=dict(feature_strides=[3.5, 7, 14, 28]))
rows = {
    'linear': dict(model=dict(neck=None, decode_head=linear)),
    'linear-block-9': dict(model=dict(neck=None, decode_head=dict(linear, in_index=1))),
    'linear-block-6': dict(model=dict(neck=None, decode_head=dict(linear, in_index=0))),
    'linear-3-blocks': dict(
        model=dict(
            neck=None,
            decode_head=dict(
                linear, in_index=[0, 1, 2], input_transform='resize_concat', in_channels=[384] * 3, channels=3 * 384
            ),
        )
    ),
    'fpn': dict(model=fpn),
    '_delete_': True,  # those of the base
}
model = dict(data_preprocessor=dict(size=(378, 504)), backbone=_base_.frozen, **fpn)
# One view of each image, so that its maps are computed once. The label maps keep their 480 x 360 pixels, to which the
# head's logits are resized.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(504, 378)),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
test_pipeline = train_pipeline
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(val_interval=500)
