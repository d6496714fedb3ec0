# RetinaNets on BCCD, blood cells of three kinds in images of 640 x 480, from scratch and pretrained on Tiny ImageNet.
# A row is a backbone. REAL_ROOT names the folder of the clones.
_base_ = [
    './_base_/models.py',
    './_base_/schedule.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../../../../configs/_base_/det_runtime.py',
]
input_size = (320, 240)
of_all = dict(_base_.model.neck, out_channels=64, num_outs=4)
tables = {
    size: {
        name: dict(
            model=dict(
                backbone=dict(backbone, _delete_=True, **dict(img_size=320) if 'img_size' in backbone else {}),
                neck=[*_base_.pyramids[size][name], dict(of_all, in_channels=_base_.channels[size][name])],
            )
        )
        for name, backbone in of.items()
    }
    for size, of in _base_.backbones.items()
}
rows = tables['small']
model = dict(
    rows['swin']['model'],
    bbox_head=dict(
        num_classes=3,
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        # 16 to 200 pixels: platelets have about 20 here, white cells 100
        anchor_generator=dict(octave_base_scale=2, strides=[8, 16, 32, 64]),
    ),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomChoiceResize', scales=[(256, 192), (320, 240), (400, 300)], keep_ratio=True),
    dict(type='RandomFlip', prob=0.5, direction=['horizontal', 'vertical']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
data = dict(
    type='XMLDataset',
    data_root='{{$REAL_ROOT:data/real}}/BCCD_Dataset/BCCD',
    data_prefix=dict(sub_data_root=''),
    metainfo=dict(classes=('RBC', 'WBC', 'Platelets')),
)
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    # Two boxes have no area. They would make the loss infinite.
    dataset=dict(data, ann_file='ImageSets/Main/train.txt', filter_cfg=dict(bbox_min_size=1), pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data, ann_file='ImageSets/Main/test.txt', test_mode=True, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='VOCMetric', metric='mAP', eval_mode='area')
test_evaluator = val_evaluator
# With several rates, the images for validation choose the best. The results are those of the test images. `make real`
# has one rate, because short runs cannot tell rates apart (AP50 after 150 steps: 4.5 and 4.4; after 500: 80 and 87).
sweep = dict(val_dataloader=dict(dataset=dict(ann_file='ImageSets/Main/val.txt')))
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=1)
)
log_processor = dict(by_epoch=False)
