_base_ = ['./_base_/dinat-b.py', './_base_/cascade-mask-rcnn.py']
model = dict(
    backbone=dict(_base_.pretrained, dilations=_base_.dilations.coco, drop_path_rate=0.6),
    neck=dict(in_channels=_base_.in_channels),
)
optim_wrapper = dict(optimizer=dict(lr=7.5e-5))
