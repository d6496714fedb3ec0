# Table 7. MMATTN_ROW=vit-s in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:msf-vit-s}}.py',
    '../_base_/models/setr-naive.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_setr.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:msf-vit-s}}'
rows = ['vit-s', 'msf-vit-s', 'msf-vit-s-g2']
model = dict(
    # of 12 blocks; 9, 14, 19, 23 of ViT-L's 24
    backbone=dict(_base_.backbone, out_indices=(4, 7, 9, 11), init_cfg=_base_.pretrained),
    decode_head=dict(in_channels=_base_.in_channels[-1]),
    auxiliary_head=[
        dict(_base_.auxiliary, in_channels=channels, in_index=i) for i, channels in enumerate(_base_.in_channels[:-1])
    ],
)
optim_wrapper = dict(optimizer=dict(lr=1e-2))
