# 300 steps from scratch, the same for all: warm-up, then half a cosine. projects/lab/tools/compare.py sets the rate.
steps, warm_up = 300, 30
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, foreach=True),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warm_up),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=warm_up, end=steps, T_max=steps - warm_up),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=steps, val_interval=steps)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
randomness = dict(seed=0)
