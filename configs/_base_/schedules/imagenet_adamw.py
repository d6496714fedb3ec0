# What ELSA, Shunted and MSF have in common. The base of each paper adds epochs, param_scheduler and the rest.
optim_wrapper = dict(
    type='AmpOptimWrapper', optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, betas=(0.9, 0.999), eps=1e-8)
)
train_cfg = dict(by_epoch=True, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=1024)
