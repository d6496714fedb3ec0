# Minutes on a CPU, from scratch, on the toy ImageNet.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    paramwise_cfg=dict(flat_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=2, convert_to_iter_based=True),  # a quarter of all steps
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=0, end=8, T_max=8, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=8, val_interval=2)
val_cfg = dict()
test_cfg = dict()
randomness = dict(seed=0)
