# Classifiers of Tiny ImageNet, 10 epochs from scratch. A row is a backbone.
_base_ = ['./_base_/models.py', './_base_/tiny-imagenet.py']
# The same head for all: a 1 x 1 convolution to 256 channels. It also takes a list of maps, as PVTv2 returns it.
mapper = dict(type='mmdet.ChannelMapper', out_channels=256, kernel_size=1, act_cfg=None)
tables = {
    size: {
        name: dict(
            model=dict(
                backbone=dict(backbone, _delete_=True, out_indices=backbone.get('out_indices', [3])[-1:]),
                neck=[dict(mapper, in_channels=_base_.channels[size][name][-1:]), dict(type='GlobalAveragePooling')],
            )
        )
        for name, backbone in of.items()
    }
    for size, of in _base_.models.items()
}
rows = tables['small']
model = dict(
    backbone=dict(_base_.models['small']['swin'], out_indices=[3]),
    neck=rows['swin']['model']['neck'],
    head=dict(in_channels=256),
)

steps, warm_up = 7800, 780  # 10 epochs and 1
param_scheduler = [dict(_base_.rise, end=warm_up), dict(_base_.fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps // 5)
sweep = dict(  # half an epoch
    param_scheduler=[dict(_base_.rise, end=80), dict(_base_.fall, begin=80, end=400, T_max=320)],
    train_cfg=dict(max_iters=400, val_interval=400),
)
