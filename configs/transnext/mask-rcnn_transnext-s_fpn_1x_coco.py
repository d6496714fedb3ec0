_base_ = ['./_base_/transnext-s.py', './_base_/decay.py', '../_base_/recipes/mask-rcnn_fpn_1x_coco.py']
model = dict(
    backbone=dict(_base_.pretrained, img_size=800, drop_path_rate=0.6), neck=dict(in_channels=_base_.in_channels)
)
# without mixed precision, as in the code
optim_wrapper = dict(type='OptimWrapper', paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
