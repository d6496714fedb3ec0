# For one GPU: half of the epochs, and the rate of a batch of 128.
_base_ = './8xb128-200e.py'
of_eight_gpus = {key: _base_[key] for key in ('optim_wrapper', 'param_scheduler', 'train_cfg', 'auto_scale_lr')}
optim_wrapper = dict(optimizer=dict(lr=1.5e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, T_max=95, begin=5, end=100, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=100)
auto_scale_lr = dict(base_batch_size=128)
