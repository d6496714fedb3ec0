# ELSA is grafted into the Swin that `make real` trained on Tiny ImageNet: the new blocks learn for an epoch, then the
# whole backbone for another, without labels.
_base_ = ['../../../lab/configs/real/_base_/models.py', './_base_/unlabelled.py', '../_base_/graft.py']
swin = dict(_base_.swin, out_indices=[3])
weights = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/swin/model.safetensors'
model = dict(
    teacher=dict(model=dict(swin, init_cfg=dict(type='Pretrained', checkpoint=weights))),
    backbone=dict(swin, attention=_base_.elsa),
)

load, _, flip, pack = _base_.train_pipeline
train_pipeline = [load, _base_.view, flip, pack]
test_pipeline = [load, pack]
train_dataloader = dict(_base_.train_loader, dataset=dict(_base_.photos, pipeline=train_pipeline))
val_dataloader = dict(_base_.val_loader, dataset=dict(_base_.photos, pipeline=test_pipeline))
test_dataloader = val_dataloader

block_epochs, epochs = 1, 2
restart, first, second = _base_.param_scheduler
param_scheduler = [
    dict(restart, periods=[block_epochs, epochs - block_epochs], end=epochs),
    dict(first, end=0.1),
    dict(second, begin=block_epochs, end=block_epochs + 0.1),
]
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=1e-3))
train_cfg = dict(max_epochs=epochs, val_interval=1)
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=block_epochs))
custom_hooks = [*_base_.custom_hooks[:-1], dict(type='mmattn_distillation.WholeModelHook', begin=block_epochs)]
randomness = dict(seed=0)
