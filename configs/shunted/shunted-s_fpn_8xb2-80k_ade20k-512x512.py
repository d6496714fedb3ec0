_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(
        type='ShuntedTransformer',
        arch='small',
        norm_cfg=dict(type='SyncBN'),
        drop_path_rate=0.2,  # not printed; as pre-trained, and as Twins, table 5's next best, has it under this head
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/ckpt_S.pth'),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
