# What the compared classifiers share. The environment variable MODEL names a file of _base_.
_base_ = [
    './_base_/{{$MODEL:swin}}.py',
    './_base_/schedule.py',
    '../../_base_/classifier.py',
    '../../_base_/datasets/toy_imagenet.py',
    '../../_base_/cls_runtime.py',
]
input_size = (64, 64)
# the first of the 1000, those in the toy ImageNet: a shape and a texture each
classes = dict(classes=[f'{shape} {texture}' for shape in range(5) for texture in range(4)])
data_preprocessor = dict(num_classes=20)
model = dict(
    backbone=dict(_base_.backbone, out_indices=[3]),
    # The same head for all: a 1 x 1 convolution to 128 channels. It also takes a list of maps, as PVTv2 returns it.
    neck=[
        dict(
            type='mmdet.ChannelMapper', in_channels=_base_.channels[-1:], out_channels=128, kernel_size=1, act_cfg=None
        ),
        dict(type='GlobalAveragePooling'),
    ],
    head=dict(num_classes=20, in_channels=128),
)
train_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(metainfo=classes),
)
val_dataloader = dict(batch_size=50, num_workers=0, persistent_workers=False, dataset=dict(metainfo=classes))
test_dataloader = val_dataloader
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(by_epoch=False, interval=-1, save_last=False))
log_processor = dict(by_epoch=False)
