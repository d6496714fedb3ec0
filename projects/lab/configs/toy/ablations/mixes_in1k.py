# Mixes of token mixers as classifiers of the toy ImageNet.
_base_ = ['./_base_/mixes.py', '../compare/_base_/tasks/classifier.py']
rows = {
    name: dict(model=dict(backbone=dict(backbone, _delete_=True, out_indices=(3,))))
    for name, backbone in _base_.models.items()
}
model = dict(backbone=dict(_base_.models['swin'], out_indices=(3,)), head=dict(in_channels=192))
