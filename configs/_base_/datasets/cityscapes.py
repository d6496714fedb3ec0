# Cityscapes for Mask2Former: training images are resized to a random short side of 512 to 2048 and cropped to 512 x
# 1024. The environment variable CITYSCAPES_ROOT names another folder. The package cityscapesscripts makes the label
# maps *_labelTrainIds.png.
data_root = '{{$CITYSCAPES_ROOT:data/cityscapes}}'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        type='RandomChoiceResize',
        scales=[side * 1024 // 10 for side in range(5, 21)],
        resize_type='ResizeShortestEdge',
        max_size=4096,
    ),
    dict(type='RandomCrop', crop_size=(512, 1024), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 1024), keep_ratio=True),
    # after Resize: the ground truth keeps its size
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=2,  # on each of 8 GPUs
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CityscapesDataset',
        data_root=data_root,
        data_prefix=dict(img_path='leftImg8bit/train', seg_map_path='gtFine/train'),
        pipeline=train_pipeline,
    ),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CityscapesDataset',
        data_root=data_root,
        data_prefix=dict(img_path='leftImg8bit/val', seg_map_path='gtFine/val'),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

# 0.5 to 1.75 times the test scale, as for ADE20K
tta_model = dict(type='mmattn.segmentation.MapTTAModel')
tta_views = dict(factors=(0.5, 0.75, 1.0, 1.25, 1.5, 1.75))
