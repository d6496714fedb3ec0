# A small source of the toy ImageNet is grafted: a row is a model of _base_/starts.py. MMATTN_STARTS names the
# folder with a training of each source, see docs/grafting.md, and MMATTN_IMAGES another folder of images.
_base_ = ['../../../lab/configs/toy/_base_/starts.py', '../_base_/graft.py']
folder = '{{$MMATTN_STARTS:work_dirs/starts}}'
# Shunted differs from PVTv2 in its feed-forward layers, too: it is no graft.
rows = {
    name: dict(
        model=dict(
            teacher=dict(
                model=dict(
                    _base_.models[source][1],
                    _delete_=True,
                    init_cfg=dict(type='Pretrained', checkpoint=f'{folder}/{source}/iter_600.pth'),
                )
            ),
            backbone=dict(backbone, _delete_=True),
        )
    )
    for name, (source, backbone, warm_start) in _base_.models.items()
    if warm_start and source != 'mmdet-pvt'
}
model = dict(
    teacher=dict(
        model={key: value for key, value in rows['elsa-swin']['model']['teacher']['model'].items() if key != '_delete_'}
    ),
    backbone=_base_.models['elsa-swin'][1],
)

data = dict(data_root='{{$MMATTN_IMAGES:data/toy/imagenet/train}}', held_out=0.05)
train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='mmattn_distillation.ViewCrop', scale=64, crop_ratio_range=(0.3, 1.0))
test_pipeline = _base_.test_pipeline
test_pipeline[1:3] = [dict(type='ResizeEdge', scale=64, edge='short'), dict(type='CenterCrop', crop_size=64)]
loader = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(
    loader,
    batch_size=16,
    batch_sampler=dict(sizes=[dict(size=(64, 64), share=1.0)]),
    dataset=dict(data, pipeline=train_pipeline),
)
val_dataloader = dict(loader, batch_size=50, dataset=dict(data, pipeline=test_pipeline))
test_dataloader = val_dataloader

block_epochs, epochs = 2, 4
restart, first, second = _base_.param_scheduler
param_scheduler = [
    dict(restart, periods=[block_epochs, epochs - block_epochs], end=epochs),
    dict(first, end=0.5),
    dict(second, begin=block_epochs, end=block_epochs + 0.5),
]
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(lr=1e-3))
train_cfg = dict(max_epochs=epochs, val_interval=1)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=block_epochs))
custom_hooks = [*_base_.custom_hooks[:-1], dict(type='mmattn_distillation.WholeModelHook', begin=block_epochs)]
randomness = dict(seed=0)
