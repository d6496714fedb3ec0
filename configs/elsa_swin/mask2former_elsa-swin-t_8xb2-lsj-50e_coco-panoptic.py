_base_ = ['./_base_/elsa-swin-t.py', '../_base_/recipes/mask2former_50e_coco-panoptic.py']
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, drop_path_rate=0.3),
    panoptic_head=dict(in_channels=_base_.in_channels),
)
