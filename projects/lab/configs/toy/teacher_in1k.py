# The classifier that distill.py has as its teacher.
_base_ = [
    './_base_/teacher.py',
    '../../../../configs/_base_/classifier.py',
    '../_base_/datasets/toy_imagenet.py',
    '../_base_/schedules/toy_imagenet.py',
    '../../../../configs/_base_/cls_runtime.py',
]
model = dict(backbone=_base_.teacher, head=dict(in_channels=384))
default_hooks = dict(logger=dict(interval=10))
