# Minutes on a CPU, from scratch: 300 steps on the toy ADE20K.
_base_ = '../../../../../configs/_base_/schedules/ade20k_160k.py'
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=50, end=300),
]
train_cfg = dict(max_iters=300, val_interval=100)
randomness = dict(seed=0)
