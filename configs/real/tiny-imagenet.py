# Classifiers of Tiny ImageNet, 10 epochs from scratch. MMATTN_ROW chooses a row. REAL_ROOT names the folder of the
# clones; `make real` writes val.txt.
_base_ = ['./_base_/models.py', './_base_/schedule.py', '../_base_/classifier.py', '../_base_/cls_runtime.py']
rows = list(_base_.models)
input_size = (64, 64)
model = dict(
    backbone=dict(_base_.backbone, out_indices=_base_.backbone.get('out_indices', [3])[-1:]),
    # The same head for all: a 1 x 1 convolution to 256 channels. It also takes a list of maps, as PVTv2 returns it.
    neck=[
        dict(
            type='mmdet.ChannelMapper', in_channels=_base_.channels[-1:], out_channels=256, kernel_size=1, act_cfg=None
        ),
        dict(type='GlobalAveragePooling'),
    ],
    head=dict(
        num_classes=200, in_channels=256, loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')
    ),
)
data_preprocessor = dict(num_classes=200, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    # Crops of 48 take two thirds of the time of 64. Random crops enlarge objects, so whole images of 64 fit better at
    # the test (Touvron et al., Fixing the train-test resolution discrepancy, 2019).
    dict(type='RandomResizedCrop', scale=48, crop_ratio_range=(0.35, 1.0)),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
root = '{{$REAL_ROOT:data/real}}/IMagenet/tiny-imagenet-200'
train_dataloader = dict(
    batch_size=128,
    num_workers=0,  # Loading and cropping take a tenth to a fifth of the time of a step.
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_prefix=f'{root}/train', pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset',
        data_prefix=f'{root}/val/images',
        ann_file='{{$MMATTN_REAL_LISTS:work_dirs/real/lists}}/tiny-imagenet_val.txt',
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator

steps, warm_up = 7800, 780  # 10 epochs and 1
param_scheduler = [dict(_base_.rise, end=warm_up), dict(_base_.fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps // 5)
sweep = dict(  # half an epoch
    param_scheduler=[dict(_base_.rise, end=80), dict(_base_.fall, begin=80, end=400, T_max=320)],
    train_cfg=dict(max_iters=400, val_interval=400),
)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(by_epoch=False, interval=195, max_keep_ckpts=1))
log_processor = dict(by_epoch=False)
