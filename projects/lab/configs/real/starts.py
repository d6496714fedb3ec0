# Does a mechanism add something to a trained model? The Swin that `make real` trained on Tiny ImageNet is trained on
# for two epochs, as it is and with other mechanisms in its windows, with its own head. MMATTN_ROW chooses a row.
# "@graft" starts from graft.py, "@scratch" from nothing.
_base_ = './tiny-imagenet.py'
swin = dict(_base_.swin, out_indices=[3])
models = {
    'swin': swin,
    'ghost-swin': dict(swin, attention=dict(type='WindowAttention', ghost_size=5)),
    'net7-swin': dict(swin, attention=dict(type='LocalAttention', terms=('qk', 'qr', 'rk', 'b'))),
    'msf-swin': dict(swin, attention=dict(type='MeanShiftWindow', proj_bias=True)),
    'elsa-swin': dict(swin, attention=_base_.elsa),
}
rows = [*models, 'elsa-swin@graft', 'elsa-swin@scratch']
row = '{{$MMATTN_ROW:swin}}'
name, start = row.split('@') if '@' in row else (row, 'warm-start')
folder = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}'
of_swin = dict(type='Pretrained', checkpoint=f'{folder}/swin/model.safetensors')
weights = {
    'warm-start': dict(of_swin, warm_start=name != 'swin'),
    'graft': dict(type='Pretrained', checkpoint=f'{folder}/{name}-graft/backbone_epoch_2.pth'),
    'scratch': None,
}
neck, pool = _base_.model.neck
model = dict(
    backbone=dict(models[name], _delete_=True, init_cfg=weights[start]),
    neck=[dict(neck, init_cfg=dict(of_swin, prefix='neck.0.')), pool] if start != 'scratch' else [neck, pool],
    head=dict(init_cfg=dict(of_swin, prefix='head.')) if start != 'scratch' else {},
)
steps = 1560
param_scheduler = [dict(_base_.rise, end=100), dict(_base_.fall, begin=100, end=steps, T_max=steps - 100)]
train_cfg = dict(max_iters=steps, val_interval=steps // 4)
