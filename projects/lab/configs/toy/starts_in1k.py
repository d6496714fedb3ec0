# Starts from trained weights and from scratch compared: small classifiers of the toy ImageNet. MMATTN_ROW chooses a
# row: a source, "swin"; a mechanism from scratch, "msf-swin"; or one of them from its source, "msf-swin from swin".
# MMATTN_STARTS names the folder with a training of each source, see docs/learning.md.
_base_ = ['./compare/_base_/tasks/classifier.py', './_base_/starts.py']
models = _base_.models
rows = [*models, *(f'{name} from {models[name][0]}' for name in models if name != 'mmdet-pvt')]
row = '{{$MMATTN_ROW:swin}}'
source, backbone, warm_start = models[row.split(' ')[0]]
folder = '{{$MMATTN_STARTS:work_dirs/starts}}'
start = dict(type='Pretrained', checkpoint=f'{folder}/{source}/iter_600.pth', warm_start=warm_start)
channels = dict(swin=192, vit=80, resnet=640).get(source, 192)
model = dict(
    backbone=dict(backbone, init_cfg=start) if ' from ' in row else backbone,
    # MMDetection's PVTv2 returns a list of maps, which pooling alone does not take.
    neck=[
        dict(type='mmdet.ChannelMapper', in_channels=[channels], out_channels=128, kernel_size=1, act_cfg=None),
        dict(type='GlobalAveragePooling'),
    ],
    head=dict(in_channels=128),
)
steps = 100
rise, fall = _base_.param_scheduler
param_scheduler = [rise, dict(fall, end=steps, T_max=steps - _base_.warm_up)]
train_cfg = dict(max_iters=steps, val_interval=steps)
