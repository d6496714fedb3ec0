# Not in the paper. Drop path as under UperNet.
_base_ = [
    '../_base_/models/semantic-fpn.py', '../_base_/datasets/ade20k.py', '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py'
]
model = dict(
    backbone=dict(
        type='MSFViT',
        arch='small',
        out_indices=(2, 5, 8, 11),
        final_norm=True,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/vit_small_patch16_224.pth', warm_start=True)),
    neck=[
        dict(type='Feature2Pyramid', embed_dim=384, norm_cfg=dict(type='SyncBN', requires_grad=True)),
        dict(in_channels=[384, 384, 384, 384], **_base_.model.neck),
    ])
