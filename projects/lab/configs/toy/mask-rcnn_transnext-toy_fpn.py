_base_ = ['./mask-rcnn_elsa-swin-toy_fpn.py', './_base_/transnext-toy.py']
model = dict(backbone=dict(_base_.transnext, _delete_=True))
