# The toy ImageNet of projects/lab/tools/make_toy_data.py at 64 x 64. IMAGENET_ROOT can name the real ImageNet.
_base_ = '../../../../../configs/_base_/datasets/imagenet.py'
data_root = '{{$IMAGENET_ROOT:data/toy/imagenet}}'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=64, crop_ratio_range=(0.5, 1.0)),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=64, edge='short'),
    dict(type='CenterCrop', crop_size=64),
    dict(type='PackInputs'),
]

train_dataloader = dict(batch_size=16, num_workers=2, dataset=dict(data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(batch_size=16, num_workers=2, dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
