# MMSegmentation's recipe for SETR: SGD without weight decay, poly decay, ten times the rate for the heads. A key "head"
# would match ELSA's ghost_head too.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=1e-3, momentum=0.9, weight_decay=0.0),
    paramwise_cfg=dict(custom_keys=dict(decode_head=dict(lr_mult=10.0), auxiliary_head=dict(lr_mult=10.0))),
)

param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=1e-4, by_epoch=False, begin=0, end=160000)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(base_batch_size=16)
