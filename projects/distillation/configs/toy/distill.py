# A narrow student of the classifier that teacher_in1k.py trains, on toy images. A row is a
# backbone. MMATTN_TEACHER names another checkpoint, MMATTN_IMAGES another folder.
_base_ = [
    '../../../lab/configs/toy/compare/_base_/models.py',
    '../../../lab/configs/toy/_base_/teacher.py',
    '../_base_/distiller.py',
    '../_base_/images.py',
    '../_base_/runtime.py',
    '../../../lab/configs/_base_/schedules/toy_imagenet.py',
]
checkpoint = '{{$MMATTN_TEACHER:work_dirs/teacher_in1k/epoch_8.pth}}'
rows = {
    name: dict(model=dict(backbone=dict(backbone, _delete_=True, out_indices=(1, 2, 3))))
    for name, backbone in _base_.models.items()
}
model = dict(
    backbone=dict(_base_.models['elsa-swin'], out_indices=(1, 2, 3)),
    teacher=dict(model=dict(_base_.teacher, init_cfg=dict(type='Pretrained', checkpoint=checkpoint))),
)

data = dict(data_root='{{$MMATTN_IMAGES:data/toy/imagenet/train}}', held_out=0.05)
train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='mmattn_distillation.ViewCrop', scale=64, crop_ratio_range=(0.3, 1.0))
test_pipeline = _base_.test_pipeline
test_pipeline[1:3] = [dict(type='ResizeEdge', scale=64, edge='short'), dict(type='CenterCrop', crop_size=64)]
train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    batch_sampler=dict(sizes=[dict(size=(64, 64), share=1.0)]),
    dataset=dict(**data, pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=50, num_workers=0, persistent_workers=False, dataset=dict(**data, pipeline=test_pipeline)
)
test_dataloader = val_dataloader

train_cfg = dict(max_epochs=4, val_interval=1)
param_scheduler = _base_.param_scheduler
param_scheduler[1].update(end=4, T_max=4)
default_hooks = dict(logger=dict(interval=10))
