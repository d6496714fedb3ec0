# Grafted mechanisms and other starts compared: small classifiers of the toy ImageNet, with the head of the source. What
# starts from scratch has a new head.
_base_ = ['../../../lab/configs/toy/compare/_base_/tasks/classifier.py', './_base_/graft_starts.py']
rows, row, of_source = _base_.rows, '{{$MMATTN_ROW:elsa-swin@graft}}', _base_.of_source
head_of_source = dict(of_source, prefix='neck.0.'), dict(of_source, prefix='head.')
neck, head = (None, None) if _base_.start == 'scratch' else head_of_source
model = dict(
    backbone=_base_.backbone,
    neck=[
        dict(
            type='mmdet.ChannelMapper',
            in_channels=[dict(swin=192, vit=80, resnet=640).get(_base_.source, 192)],
            out_channels=128,
            kernel_size=1,
            act_cfg=None,
            **dict(init_cfg=neck) if neck else {},
        ),
        dict(type='GlobalAveragePooling'),
    ],
    head=dict(in_channels=128, **dict(init_cfg=head) if head else {}),
)
steps, warm_up = 30, 3
rise, fall = _base_.param_scheduler
param_scheduler = [dict(rise, end=warm_up), dict(fall, begin=warm_up, end=steps, T_max=steps - warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps)
