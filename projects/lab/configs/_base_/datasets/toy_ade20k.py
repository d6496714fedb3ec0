# The toy ADE20K of projects/lab/tools/make_toy_data.py at its own size. ADE20K_ROOT can name the real ADE20K.
_base_ = '../../../../../configs/_base_/datasets/ade20k.py'
data_root = '{{$ADE20K_ROOT:data/toy/ADEChallengeData2016}}'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(640, 128), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(128, 128), cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
resize = dict(type='Resize', scale=(640, 128), keep_ratio=True)
test_pipeline = [resize if step.type == 'Resize' else step for step in _base_.test_pipeline]

train_dataloader = dict(batch_size=4, num_workers=2, dataset=dict(data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(num_workers=2, dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
auto_scale_lr = dict(base_batch_size=4)
