# The papers' COCO recipe: AdamW, mixed precision, 12 epochs. The warm-up of 500 steps is that of ELSA's release.
_base_ = 'mmdet::_base_/schedules/schedule_1x.py'

optim_wrapper = dict(
    _delete_=True,
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # no decay on norms and position tables
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={name: dict(decay_mult=0.0) for name in ('.relative_position', '.rel_', '.pos_embed')},
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
