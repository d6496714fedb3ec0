# The Shunted Transformer that `make real` trained, the best of its classifiers, teaches a row without labels, in as
# many epochs as a classifier learns from labels. A row is a student.
_base_ = [
    '../../../lab/configs/real/_base_/models.py',
    '../../../lab/configs/real/_base_/schedule.py',
    './_base_/unlabelled.py',
    '../_base_/distiller.py',
    '../_base_/images.py',
    '../_base_/runtime.py',
]
rows = {
    name: {'model.backbone': dict(backbone, _delete_=True, out_indices=backbone.get('out_indices', (0, 1, 2, 3))[1:])}
    for name, backbone in _base_.models['small'].items()
    if name != 'shunted'
}
weights = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/shunted/model.safetensors'
shunted = dict(_base_.models['small']['shunted'], out_indices=[3], init_cfg=dict(type='Pretrained', checkpoint=weights))
model = dict(teacher=dict(model=shunted), backbone=dict(_base_.models['small']['swin'], out_indices=(1, 2, 3)))

# Both see the same image: its colours are not changed, as those of classifiers are not.
load, _, flip, _, pack = _base_.train_pipeline
train_pipeline = [load, _base_.view, flip, pack]
test_pipeline = [load, pack]
train_dataloader = dict(_base_.train_loader, dataset=dict(_base_.photos, pipeline=train_pipeline))
val_dataloader = dict(_base_.val_loader, dataset=dict(_base_.photos, pipeline=test_pipeline))
test_dataloader = val_dataloader

epochs = 10
by_epoch = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(_base_.rise, end=1, **by_epoch),
    dict(_base_.fall, begin=1, end=epochs, T_max=epochs - 1, **by_epoch),
]
train_cfg = dict(_delete_=True, by_epoch=True, max_epochs=epochs, val_interval=1)
default_hooks = dict(logger=dict(interval=20))
