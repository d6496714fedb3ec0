_base_ = ['./mask-rcnn_elsa-swin-toy_fpn.py', './_base_/gsa-resnet-toy.py']
model = dict(backbone=dict(_base_.gsa_resnet, _delete_=True))
