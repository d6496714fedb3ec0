# Not in the paper: ELSA-Swin's recipe. The pyramid is MMSegmentation's, which has to be installed, too.
_base_ = [
    './_base_/msf-vit-s_pyramid.py',
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(backbone=_base_.backbone, neck=[_base_.pyramid, dict(in_channels=_base_.in_channels, **_base_.model.neck)])
