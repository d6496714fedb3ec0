# Not in the paper: from Tiny to Small the rate of drop path rises from 0.1 to 0.2, and in pre-training from 0.1 to 0.3,
# with 0.5 for Base. Base gets 0.3 here.
_base_ = ['./_base_/elsa-swin-b.py', './_base_/decay.py', '../_base_/recipes/cascade-mask-rcnn_fpn_ms-1x_coco.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.3), neck=dict(in_channels=_base_.in_channels))
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
