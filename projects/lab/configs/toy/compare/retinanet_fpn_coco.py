# What the compared detectors share. A row is a backbone.
_base_ = [
    './_base_/models.py',
    './_base_/schedule.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../../_base_/datasets/toy_coco_detection.py',
    '../../../../../configs/_base_/det_runtime.py',
]
input_size = (64, 64)
classes = dict(classes=('frisbee', 'kite', 'donut', 'book', 'scissors'))
of_all = dict(_base_.model.neck, out_channels=32, add_extra_convs=False, start_level=0, num_outs=4)
rows = {
    name: dict(
        model=dict(
            backbone=dict(backbone, _delete_=True),
            neck=[*_base_.pyramids[name], dict(of_all, in_channels=_base_.channels[name])],
        )
    )
    for name, backbone in _base_.models.items()
}
model = dict(
    rows['swin']['model'],
    bbox_head=dict(
        num_classes=5,
        in_channels=32,
        feat_channels=32,
        stacked_convs=1,
        anchor_generator=dict(octave_base_scale=3, strides=[4, 8, 16, 32]),
    ),
    test_cfg=dict(max_per_img=30),
)
resize = dict(type='Resize', scale=input_size, keep_ratio=True)
train_pipeline = [resize if step.type == 'Resize' else step for step in _base_.train_pipeline]
test_pipeline = [resize if step.type == 'Resize' else step for step in _base_.test_pipeline]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(metainfo=classes, pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=10, num_workers=0, persistent_workers=False, dataset=dict(metainfo=classes, pipeline=test_pipeline)
)
test_dataloader = val_dataloader
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=-1, save_last=False)
)
log_processor = dict(by_epoch=False)
