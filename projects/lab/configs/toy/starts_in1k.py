# Starts from trained weights and from scratch compared: small classifiers of the toy ImageNet. A row is a
# source, "swin"; a token mixer from scratch, "msf-swin"; or one of them from its source, "msf-swin from swin".
# MMATTN_STARTS names the folder with a training of each source, see docs/learning.md.
_base_ = ['./compare/_base_/tasks/classifier.py', './_base_/starts.py']
folder = '{{$MMATTN_STARTS:work_dirs/starts}}'
# MMDetection's PVTv2 returns a list of maps, which pooling alone does not take.
to_128 = dict(type='mmdet.ChannelMapper', in_channels=[192], out_channels=128, kernel_size=1, act_cfg=None)
pool = dict(type='GlobalAveragePooling')
swin = dict(backbone=_base_.models['swin'][1], neck=[to_128, pool])
channels = dict(vit=80, resnet=640)
scratch = {
    name: dict(
        backbone=dict(backbone, _delete_=True), neck=[dict(to_128, in_channels=[channels.get(source, 192)]), pool]
    )
    for name, (source, backbone, _) in _base_.models.items()
}
starts = {
    name: dict(type='Pretrained', checkpoint=f'{folder}/{source}/iter_600.pth', warm_start=warm_start)
    for name, (source, _, warm_start) in _base_.models.items()
}
rows = {
    **{name: dict(model=model) for name, model in scratch.items()},
    **{
        f'{name} from {_base_.models[name][0]}': dict(
            model=dict(model, backbone=dict(model['backbone'], init_cfg=starts[name]))
        )
        for name, model in scratch.items()
        if name != 'mmdet-pvt'
    },
}
model = dict(swin, head=dict(in_channels=128))
steps = 100
rise, fall = _base_.param_scheduler
param_scheduler = [rise, dict(fall, end=steps, T_max=steps - _base_.warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps)
