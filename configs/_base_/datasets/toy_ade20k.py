# The toy ADE20K of tools/dev/make_toy_data.py, at its own size; ADE20K_ROOT can lead to the real one.
_base_ = './ade20k.py'
data_root = '{{$ADE20K_ROOT:data/toy/ADEChallengeData2016}}'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomResize', scale=(640, 128), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(128, 128), cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(640, 128), keep_ratio=True),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale=(640 * quarters // 4, 128 * quarters // 4), keep_ratio=True)
                for quarters in (2, 3, 4, 5, 6, 7)
            ],
            [
                dict(type='RandomFlip', prob=0.0, direction='horizontal'),
                dict(type='RandomFlip', prob=1.0, direction='horizontal'),
            ],
            [dict(type='LoadAnnotations', reduce_zero_label=True)],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(batch_size=4, num_workers=2, dataset=dict(data_root=data_root, pipeline=train_pipeline))
val_dataloader = dict(num_workers=2, dataset=dict(data_root=data_root, pipeline=test_pipeline))
test_dataloader = val_dataloader
