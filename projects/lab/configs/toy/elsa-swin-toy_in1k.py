# A classifier for the toy ImageNet.
_base_ = [
    './_base_/elsa-swin-toy.py',
    '../../../../configs/_base_/classifier.py',
    '../_base_/datasets/toy_imagenet.py',
    '../_base_/schedules/toy_imagenet.py',
    '../../../../configs/_base_/cls_runtime.py',
]
model = dict(backbone=dict(_base_.backbone, out_indices=(3,)), head=dict(in_channels=_base_.in_channels[-1]))
default_hooks = dict(logger=dict(interval=10))
