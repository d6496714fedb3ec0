# Optimizer and schedule of UNIC, https://arxiv.org/abs/2408.05088 and its code: the rate is 3e-4 for 256 images. Norms
# and biases have no weight decay, and gradients are not clipped.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1.2e-3, weight_decay=0.03, betas=(0.9, 0.99), eps=1e-8),
    paramwise_cfg=dict(flat_decay_mult=0.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, T_max=190, begin=10, end=200, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=1024)
