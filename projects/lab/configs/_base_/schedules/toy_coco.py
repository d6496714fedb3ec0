# Minutes on a CPU, from scratch: 300 steps on the toy COCO.
_base_ = '../../../../../configs/_base_/schedules/coco_1x.py'
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=10.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=0, end=3, T_max=3, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=3, val_interval=1)
randomness = dict(seed=0)
auto_scale_lr = dict(base_batch_size=4)
