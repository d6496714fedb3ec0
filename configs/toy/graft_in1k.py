# Grafted mechanisms and other starts compared: small classifiers of the toy ImageNet. A row is a mechanism of
# _base_/starts.py and its start: "graft" and "blocks" (graft.py after its last epoch, and after that of its blocks) or
# "warm-start", with the head of the source; or "scratch". MMATTN_STARTS names the folder with a training of each source
# and, under graft/, of each graft, see docs/grafting.md.
_base_ = ['./compare/_base_/tasks/classifier.py', './_base_/starts.py']
models = _base_.models
starts = ['graft', 'blocks', 'warm-start', 'scratch']
rows = [f'{name}@{start}' for name in models if models[name][2] and models[name][0] != 'mmdet-pvt' for start in starts]
row = '{{$MMATTN_ROW:elsa-swin@graft}}'
name, start = row.split('@')
source, backbone, _ = models[name]
folder = '{{$MMATTN_STARTS:work_dirs/starts}}'
of_source = dict(type='Pretrained', checkpoint=f'{folder}/{source}/iter_600.pth')
weights = {
    'graft': dict(type='Pretrained', checkpoint=f'{folder}/graft/{name}/backbone_epoch_4.pth'),
    'blocks': dict(type='Pretrained', checkpoint=f'{folder}/graft/{name}/backbone_epoch_2.pth'),
    'warm-start': dict(of_source, warm_start=True),
}
head_of_source = dict(of_source, prefix='neck.0.'), dict(of_source, prefix='head.')
neck, head = (None, None) if start == 'scratch' else head_of_source
model = dict(
    backbone=dict(backbone, init_cfg=weights.get(start)),
    neck=[
        dict(
            type='mmdet.ChannelMapper',
            in_channels=[dict(swin=192, vit=80, resnet=640).get(source, 192)],
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
