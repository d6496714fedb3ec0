# A classifier for the toy ImageNet. Its backbone is that of the detectors and segmentors named shunted-toy.
_base_ = ['./elsa-swin-toy_in1k.py', './_base_/shunted-toy.py']
model = dict(backbone=dict(_base_.shunted, _delete_=True, out_indices=(3,)), head=dict(in_channels=256))
