# Does a token mixer add something to a trained model? The Swin that `make real` trained on Tiny ImageNet is trained on
# for two epochs, as it is and with other token mixers in its windows, with its own head. A row with
# "@graft" starts from graft.py, one with "@scratch" from nothing.
_base_ = './tiny-imagenet.py'
swin = dict(_base_.swin, out_indices=[3])
models = {
    'swin': swin,
    'ghost-swin': dict(swin, attention=dict(type='WindowAttention', ghost_size=5)),
    'net7-swin': dict(swin, attention=dict(type='LocalAttention', terms=('qk', 'qr', 'rk', 'b'))),
    'msf-swin': dict(swin, attention=dict(type='MeanShiftWindow', proj_bias=True)),
    'elsa-swin': dict(swin, attention=_base_.elsa),
}
folder = '{{$MMATTN_REAL_WEIGHTS:work_dirs/real/weights}}'
of_swin = dict(type='Pretrained', checkpoint=f'{folder}/swin/model.safetensors')
graft = dict(type='Pretrained', checkpoint=f'{folder}/elsa-swin-graft/backbone_epoch_2.pth')
mapper, pool = _base_.model.neck
rows = {
    **{
        name: {'model.backbone': dict(backbone, _delete_=True, init_cfg=dict(of_swin, warm_start=name != 'swin'))}
        for name, backbone in models.items()
    },
    'elsa-swin@graft': {'model.backbone': dict(models['elsa-swin'], _delete_=True, init_cfg=graft)},
    'elsa-swin@scratch': dict(
        model=dict(
            backbone=dict(models['elsa-swin'], _delete_=True, init_cfg=None),
            neck=[mapper, pool],
            head=dict(_base_.model.head, _delete_=True),
        )
    ),
    '_delete_': True,  # those of the base
}
model = dict(
    backbone=dict(swin, _delete_=True, init_cfg=dict(of_swin, warm_start=False)),
    neck=[dict(mapper, init_cfg=dict(of_swin, prefix='neck.0.')), pool],
    head=dict(init_cfg=dict(of_swin, prefix='head.')),
)
steps = 1560
param_scheduler = [dict(_base_.rise, end=100), dict(_base_.fall, begin=100, end=steps, T_max=steps - 100)]
train_cfg = dict(max_iters=steps, val_interval=steps // 4)
