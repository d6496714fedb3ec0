# Swin's recipe for UperNet: AdamW, linear decay after a warm-up of 1500 steps.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # no decay on norms and position tables
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={name: dict(decay_mult=0.0) for name in ('.relative_position', '.rel_', '.pos_embed')},
    ),
)

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=160000),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
