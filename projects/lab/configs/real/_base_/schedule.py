# AdamW, warm-up, half a cosine: the same for all models. A task sets the steps, projects/lab/tools/compare.py the rate.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, foreach=True),
    # Vectors are not decayed: norms, biases, factors of the channels.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0),
)
rise = dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100)
fall = dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=100, end=500, T_max=400)
param_scheduler = [rise, fall]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=500, val_interval=250)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
randomness = dict(seed=0)
