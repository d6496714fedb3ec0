# A narrow MSF-ViT with SETR's naive head: trains from scratch on the toy ADE20K in minutes on a CPU.
_base_ = [
    '../../../../configs/_base_/models/setr-naive.py',
    '../_base_/datasets/toy_ade20k.py',
    '../_base_/schedules/toy_ade20k.py',
    '../../../../configs/_base_/seg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(
        type='mmattn.MSFViT', arch=dict(embed_dim=96, depth=4, num_heads=3), patch_size=8, out_indices=(0, 1, 2, 3)
    ),
    decode_head=dict(in_channels=96, channels=64),
    test_cfg=dict(_delete_=True, mode='whole'),
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=100))
