_base_ = ['./_base_/shunted-s.py', '../_base_/recipes/dino-4scale_12e_coco.py']
model = dict(
    backbone=dict(
        _base_.backbone,
        _delete_=True,
        out_indices=(1, 2, 3),
        norm_cfg=dict(type='SyncBN'),
        drop_path_rate=0.1,
        init_cfg=_base_.pretrained,
    ),
    neck=dict(in_channels=_base_.in_channels[1:]),
)
