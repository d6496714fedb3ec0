# Table 7. MMATTN_ROW=vit-s in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:msf-vit-s}}.py',
    '../_base_/models/setr-mla.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_setr.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:msf-vit-s}}'
rows = ['vit-s', 'msf-vit-s', 'msf-vit-s-g2']
model = dict(
    # of 12 blocks; 5, 11, 17, 23 of ViT-L's 24
    backbone=dict(_base_.backbone, out_indices=(2, 5, 8, 11), init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
