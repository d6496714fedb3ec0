# Does a mechanism add something to a trained model? The Swin that `make real` trained on Tiny ImageNet is trained on
# for two epochs, as it is and with other mechanisms in its windows, each with a new head. MMATTN_ROW chooses a row.
_base_ = './tiny-imagenet.py'
swin = dict(_base_.swin, out_indices=[3])
models = {
    'swin': swin,
    'ghost-swin': dict(swin, stages=dict(type='WindowAttention', ghost_size=5)),
    'net7-swin': dict(swin, stages=dict(type='LocalAttention', terms=('qk', 'qr', 'rk', 'b'))),
    'msf-swin': dict(swin, stages=dict(type='MeanShiftWindow', proj_bias=True)),
    'elsa-swin': dict(swin, stages=dict(type='ELSA', kernel_size=5, group_width=8)),
}
rows = list(models)
row = '{{$MMATTN_ROW:swin}}'
start = dict(
    type='Pretrained',
    checkpoint='{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}/swin/model.safetensors',
    warm_start=row != 'swin',
)
model = dict(backbone=dict(models[row], _delete_=True, init_cfg=start))
steps = 1560
param_scheduler = [dict(_base_.rise, end=100), dict(_base_.fall, begin=100, end=steps, T_max=steps - 100)]
train_cfg = dict(max_iters=steps, val_interval=steps // 2)
