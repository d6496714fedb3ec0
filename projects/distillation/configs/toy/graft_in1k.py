# Grafted token mixers and other starts compared: small classifiers of the toy ImageNet, with the head of the source.
# What starts from scratch has a new head.
_base_ = ['../../../lab/configs/toy/compare/_base_/tasks/classifier.py', './_base_/graft_starts.py']
mapper = dict(type='mmdet.ChannelMapper', out_channels=128, kernel_size=1, act_cfg=None)
channels = dict(vit=80, resnet=640)


def parts(row, prefix):
    """The weights of the source in the neck or head, as settings; none from scratch."""
    start = _base_.of_sources[row.partition('@')[0]]
    return {} if row.endswith('@scratch') else dict(init_cfg=dict(start, prefix=prefix))


rows = {
    row: dict(
        model=dict(
            backbone=dict(backbone, _delete_=True),
            neck=[
                dict(mapper, in_channels=[channels.get(source, 192)], **parts(row, 'neck.0.')),
                dict(type='GlobalAveragePooling'),
            ],
            head=dict(_base_.model.head, _delete_=True, in_channels=128, **parts(row, 'head.')),
        )
    )
    for row, (source, backbone) in _base_.backbones.items()
}
model = dict(rows['elsa-swin@graft']['model'], backbone=_base_.backbones['elsa-swin@graft'][1])
steps, warm_up = 30, 3
rise, fall = _base_.param_scheduler
param_scheduler = [dict(rise, end=warm_up), dict(fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps)
