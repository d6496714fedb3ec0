# What classifiers of Tiny ImageNet share. REAL_ROOT names the folder of the clones; `make real` writes val.txt.
_base_ = [
    './schedule.py',
    '../../../../../configs/_base_/classifier.py',
    '../../../../../configs/_base_/cls_runtime.py',
]
input_size = (64, 64)
model = dict(head=dict(num_classes=200, loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')))
data_preprocessor = dict(num_classes=200, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    # Crops of 48 take two thirds of the time of 64.
    dict(type='RandomResizedCrop', scale=48, crop_ratio_range=(0.35, 1.0)),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
# The test has the size of the training. Maps of so few pixels depend on it: tested on whole images of 64, models lose
# up to 15 points and change places, see projects/lab/docs/real-runs.md.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=56, edge='short', backend='pillow'),
    dict(type='CenterCrop', crop_size=48),
    dict(type='PackInputs'),
]
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
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=195, max_keep_ckpts=1)
)
log_processor = dict(by_epoch=False)
