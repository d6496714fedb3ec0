_base_ = ['./_base_/swin-t.py', './_base_/swin_decay.py', '../_base_/recipes/mask-rcnn_fpn_ms-1x_coco.py']
model = dict(backbone=dict(_base_.pretrained, drop_path_rate=0.1), neck=dict(in_channels=_base_.in_channels))
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
