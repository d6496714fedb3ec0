# MMATTN_ROW=shunted-b in the environment chooses a row. Only Small is in the paper.
_base_ = [
    './_base_/{{$MMATTN_ROW:shunted-s}}.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:shunted-s}}'
rows = ['shunted-t', 'shunted-s', 'shunted-b', 'shunted-l']
model = dict(
    backbone=dict(_base_.backbone, norm_cfg=_base_.sync_norm, drop_path_rate=0.3, init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
