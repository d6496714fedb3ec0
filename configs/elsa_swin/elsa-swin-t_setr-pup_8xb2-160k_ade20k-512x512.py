# Not in the paper: SETR's head upsamples the map of stride 32, its auxiliary head that of stride 16. Recipe: UperNet's.
_base_ = [
    './_base_/elsa-swin-t.py',
    './_base_/decay.py',
    '../_base_/models/setr-pup.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, out_indices=(2, 3), drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels[3]),
    auxiliary_head=[dict(_base_.auxiliary, in_channels=_base_.in_channels[2], in_index=0)],
)
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
