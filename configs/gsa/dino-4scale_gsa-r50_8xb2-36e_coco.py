_base_ = ['./_base_/gsa-r50.py', './_base_/coco.py', '../_base_/recipes/dino-4scale_36e_coco.py']
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, out_indices=(1, 2, 3), **_base_.settings, init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels[1:]),
)
