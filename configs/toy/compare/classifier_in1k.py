# What the compared classifiers share. The environment variable MMATTN_ROW names a file of _base_.
_base_ = ['./_base_/{{$MMATTN_ROW:swin}}.py', './_base_/rows.py', './_base_/tasks/classifier.py']
row = '{{$MMATTN_ROW:swin}}'
model = dict(
    backbone=dict(_base_.backbone, out_indices=[3]),
    # The same head for all: a 1 x 1 convolution to 128 channels. It also takes a list of maps, as PVTv2 returns it.
    neck=[
        dict(
            type='mmdet.ChannelMapper', in_channels=_base_.channels[-1:], out_channels=128, kernel_size=1, act_cfg=None
        ),
        dict(type='GlobalAveragePooling'),
    ],
    head=dict(in_channels=128),
)
