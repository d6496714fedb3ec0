# The Shunted Transformer that `make real` trained, the best of its classifiers, teaches a row without labels, in as
# many epochs as a classifier learns from labels. MMATTN_ROW chooses the row.
_base_ = [
    './_base_/models.py',
    './_base_/unlabelled.py',
    '../distillation/_base_/distiller.py',
    '../distillation/_base_/images.py',
    '../distillation/_base_/recipe.py',
    '../distillation/_base_/runtime.py',
]
rows = [name for name in _base_.models if name != 'shunted']
weights = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/shunted/model.safetensors'
shunted = dict(_base_.models['shunted'], out_indices=[3], init_cfg=dict(type='Pretrained', checkpoint=weights))
model = dict(
    teacher=dict(model=shunted),
    backbone=dict(_base_.backbone, out_indices=_base_.backbone.get('out_indices', (0, 1, 2, 3))[1:]),
)

# Both see the same image: its colours are not changed, as those of classifiers are not.
load, _, flip, _, pack = _base_.train_pipeline
train_pipeline = [load, _base_.view, flip, pack]
train_dataloader = dict(_base_.train_loader, dataset=dict(_base_.photos, pipeline=train_pipeline))
val_dataloader = dict(_base_.val_loader, dataset=dict(_base_.photos, pipeline=[load, pack]))
test_dataloader = val_dataloader

# Rate, weight decay and clipping are those of classifiers, see _base_/schedule.py.
epochs = 10
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(lr=1e-3, weight_decay=0.05, betas=(0.9, 0.999)),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, T_max=epochs - 1, begin=1, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(logger=dict(interval=20))
randomness = dict(seed=0)
