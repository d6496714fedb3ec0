# MMATTN_ROW=elsa-swin-s in the environment chooses a row. Base is not in the paper.
_base_ = [
    './_base_/{{$MMATTN_ROW:elsa-swin-t}}.py',
    './_base_/decay.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:elsa-swin-t}}'
rows = ['elsa-swin-t', 'elsa-swin-s', 'elsa-swin-b', 'swin-t', 'swin-s', 'swin-b']
model = dict(
    backbone=dict(_base_.backbone, drop_path_rate=0.3, init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
