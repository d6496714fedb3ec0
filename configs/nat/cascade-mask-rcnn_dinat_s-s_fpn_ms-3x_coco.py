_base_ = ['./_base_/dinat_s-s.py', './_base_/cascade-mask-rcnn.py']
model = dict(
    backbone=dict(_base_.pretrained, attention=_base_.attentions.coco, drop_path_rate=0.5),
    neck=dict(in_channels=_base_.in_channels),
)
