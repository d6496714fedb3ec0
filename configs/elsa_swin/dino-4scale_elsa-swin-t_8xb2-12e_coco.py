_base_ = ['./_base_/elsa-swin-t.py', '../_base_/recipes/dino-4scale_12e_coco.py']
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, out_indices=(1, 2, 3), drop_path_rate=0.1),
    neck=dict(in_channels=_base_.in_channels[1:]),
)
