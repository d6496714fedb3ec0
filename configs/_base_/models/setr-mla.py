# SETR with multi-level feature aggregation, of four maps of one stride. The backbone and neck.in_channels are to be
# added.
_base_ = './setr.py'

model = dict(
    neck=dict(type='MLANeck', out_channels=256, norm_cfg=_base_.sync_norm, act_cfg=dict(type='ReLU')),
    decode_head=dict(
        type='SETRMLAHead', in_channels=(256, 256, 256, 256), channels=512, in_index=(0, 1, 2, 3), mla_channels=128
    ),
    auxiliary_head=[
        dict(
            _base_.auxiliary,
            type='FCNHead',
            in_channels=256,
            channels=256,
            in_index=i,
            num_convs=0,
            kernel_size=1,
            concat_input=False,
        )
        for i in range(4)
    ],
)
