# Not in the paper. Drop path is ELSA-Swin's. MMATTN_ROW=msf-swin-s in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:msf-swin-t}}.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:msf-swin-t}}'
rows = ['msf-swin-t', 'msf-swin-t-g2', 'msf-swin-s']
model = dict(
    backbone=dict(_base_.backbone, drop_path_rate=0.2, init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
