# ImageNet, trained and tested as by ELSA's paper and script. What the paper does not print is the script's. The
# backbone, its drop path and head.in_channels are to be added.
_base_ = [
    '../../_base_/classifier.py',
    '../../_base_/datasets/imagenet.py',
    '../../_base_/datasets/rand_augment.py',
    '../../_base_/schedules/imagenet_adamw.py',
    '../../_base_/cls_runtime.py',
]
model = dict(
    backbone=dict(out_indices=(3,), shift_small_maps=False),
    head=dict(
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(
        augments=dict(
            type='mmattn.classification.MixThenErase',
            mixing=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)],
            erase_prob=0.25,
        )
    ),
)

# The script draws an interpolation for each crop and for each operation of RandAugment. Here all operations on an image
# have the same one.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation=name)]
            for name in ('bilinear', 'bicubic')
        ],
    ),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(_base_.rand_augment, hparams=dict(pad_val=_base_.fill, interpolation=name))]
            for name in ('bilinear', 'bicubic')
        ],
    ),
    dict(type='PackInputs'),
]
# int(224 / 0.9), as in the script. The paper follows Swin, which has 256.
resize = dict(type='ResizeEdge', scale=248, edge='short', backend='pillow', interpolation='bicubic')
test_pipeline = [_base_.test_pipeline[0], resize, *_base_.test_pipeline[2:]]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(paramwise_cfg=dict(flat_decay_mult=0.0), clip_grad=dict(max_norm=5.0))
param_scheduler = dict(
    type='mmattn.classification.TimmCosineLR', t_initial=300, lr_min=1e-5, warmup_t=20, warmup_lr_init=1e-6
)
train_cfg = dict(max_epochs=310)
