# Table 7. MMATTN_ROW=vit-s in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:msf-vit-s}}.py',
    './_base_/setr-naive.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_setr.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:msf-vit-s}}'
rows = ['vit-s', 'msf-vit-s', 'msf-vit-s-g2']
model = dict(backbone=dict(_base_.backbone, init_cfg=_base_.pretrained))
optim_wrapper = dict(optimizer=dict(lr=1e-2))
