# The papers' COCO recipe: AdamW, mixed precision, 12 epochs.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # no decay on norms and position tables
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys={'.rb': dict(decay_mult=0.0), '.rel_': dict(decay_mult=0.0)}),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
