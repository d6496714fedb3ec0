_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(
        type='ShuntedTransformer',
        arch='small',
        norm_cfg=dict(type='SyncBN'),
        # Not printed. The recipe is Swin's, whose UperNets of every size have 0.3, ELSA's too.
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/ckpt_S.pth'),
    ),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
