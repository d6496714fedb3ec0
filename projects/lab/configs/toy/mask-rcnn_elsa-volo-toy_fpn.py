_base_ = ['./mask-rcnn_elsa-swin-toy_fpn.py', './_base_/elsa-volo-toy.py']
model = dict(
    backbone=dict(_base_.volo, _delete_=True),
    neck=[_base_.pyramid, dict(_base_.model.neck, in_channels=[64, 64, 64, 64])],
)
