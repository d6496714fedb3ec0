# ImageNet, trained and tested as by Shunted's paper and script. What the paper does not print is the script's. The
# backbone, its drop path and head.in_channels are to be added.
_base_ = [
    '../../_base_/classifier.py',
    '../../_base_/datasets/imagenet.py',
    '../../_base_/datasets/rand_augment.py',
    '../../_base_/schedules/imagenet_adamw.py',
    '../../_base_/cls_runtime.py',
]
model = dict(
    backbone=dict(out_indices=(3,)),
    head=dict(
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)

train_pipeline = [
    *_base_.train_pipeline[:-1],
    dict(_base_.rand_augment, hparams=dict(pad_val=_base_.fill, interpolation='bicubic')),
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=_base_.data_preprocessor.mean[::-1],  # BGR
        fill_std=_base_.data_preprocessor.std[::-1],
    ),
    dict(type='PackInputs'),
]
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'), dataset=dict(pipeline=train_pipeline))

optim_wrapper = dict(paramwise_cfg=dict(flat_decay_mult=0.0))
# lag: the script sets the rate after each epoch, with that epoch's number.
param_scheduler = dict(
    type='mmattn.classification.TimmCosineLR', t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6, lag=1
)
train_cfg = dict(max_epochs=300)
custom_hooks = [dict(type='SyncBuffersHook')]  # the stem's batch norm
