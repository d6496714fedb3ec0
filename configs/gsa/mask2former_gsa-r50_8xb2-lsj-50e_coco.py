_base_ = ['./_base_/gsa-r50.py', './_base_/coco.py', '../_base_/recipes/mask2former_50e_coco.py']
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, **_base_.settings, init_cfg=_base_.pretrained),
    panoptic_head=dict(in_channels=_base_.in_channels),
)
