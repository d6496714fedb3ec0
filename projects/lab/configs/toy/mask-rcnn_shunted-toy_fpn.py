_base_ = ['./mask-rcnn_elsa-swin-toy_fpn.py', './_base_/shunted-toy.py']
model = dict(backbone=dict(_base_.shunted, _delete_=True))
