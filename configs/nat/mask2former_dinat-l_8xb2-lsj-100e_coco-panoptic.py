_base_ = [
    './_base_/dinat-l-11x11.py',
    './_base_/mask2former_100e.py',
    '../_base_/recipes/mask2former_50e_coco-panoptic.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, dilations=_base_.dilations.mask2former, drop_path_rate=0.3),
    panoptic_head=dict(in_channels=_base_.in_channels, num_queries=200),
)
param_scheduler = _base_.param_scheduler_100e
train_cfg = _base_.train_cfg_100e
