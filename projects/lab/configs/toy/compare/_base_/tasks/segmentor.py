# What Semantic FPNs on the toy ADE20K share. The backbone and the neck's in_channels are to be added.
_base_ = [
    '../schedule.py',
    '../../../../../../../configs/_base_/models/semantic-fpn.py',
    '../../../../_base_/datasets/toy_ade20k.py',
    '../../../../../../../configs/_base_/seg_runtime.py',
]
input_size = (64, 64)
# of the 150, those in the toy ADE20K
classes = dict(classes=('sky', 'grass', 'book', 'ball', 'fan', 'monitor', 'flag'))
model = dict(
    data_preprocessor=dict(size=input_size),
    neck=dict(out_channels=32),
    decode_head=dict(
        num_classes=7,
        in_channels=[32] * 4,
        channels=32,
        dropout_ratio=0.0,
        # The shapes cover a few pixels. With equal weights, 300 steps learn the background alone.
        loss_decode=dict(class_weight=[0.2, 0.2, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(640, 64), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=input_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
resize = dict(type='Resize', scale=(640, 64), keep_ratio=True)
test_pipeline = [resize if step.type == 'Resize' else step for step in _base_.test_pipeline]
train_dataloader = dict(
    batch_size=8, num_workers=0, persistent_workers=False, dataset=dict(metainfo=classes, pipeline=train_pipeline)
)
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(metainfo=classes, pipeline=test_pipeline))
test_dataloader = val_dataloader
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=-1, save_last=False))
