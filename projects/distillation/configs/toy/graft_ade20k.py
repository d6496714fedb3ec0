# Grafted token mixers and other starts compared: Semantic FPNs on the toy ADE20K, whose necks and heads are new.
_base_ = ['../../../lab/configs/toy/compare/_base_/tasks/segmentor.py', './_base_/graft_starts.py']
of_vit = dict(type='mmseg.Feature2Pyramid', embed_dim=80, rescales=[2, 1, 0.5, 0.25], norm_cfg=dict(type='BN'))
channels = dict(vit=[80] * 4, resnet=[80, 160, 320, 640])
rows = {
    row: dict(
        model=dict(
            backbone=dict(backbone, _delete_=True, out_indices=(0, 1, 2, 3)),
            neck=[
                *([of_vit] if source == 'vit' else []),
                dict(_base_.model.neck, in_channels=channels.get(source, [24, 48, 96, 192])),
            ],
        )
    )
    for row, (source, backbone) in _base_.backbones.items()
}
model = dict(
    rows['elsa-swin@graft']['model'], backbone=dict(_base_.backbones['elsa-swin@graft'][1], out_indices=(0, 1, 2, 3))
)
steps, warm_up = 75, 8
rise, fall = _base_.param_scheduler
param_scheduler = [dict(rise, end=warm_up), dict(fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps)
