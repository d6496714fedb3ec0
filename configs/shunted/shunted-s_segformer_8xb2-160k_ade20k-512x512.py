_base_ = [
    '../_base_/models/segformer.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_segformer.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(
        type='ShuntedTransformer',
        arch='small',
        norm_cfg=dict(type='SyncBN'),
        drop_path_rate=0.1,  # not printed; SegFormer's own, of MiT-B2, which table 6 compares with
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/ckpt_S.pth'),
    ),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
)
