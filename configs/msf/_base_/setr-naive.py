# Table 7.
_base_ = [
    '../../_base_/models/setr-naive.py',
    '../../_base_/datasets/ade20k.py',
    '../../_base_/schedules/ade20k_160k_setr.py',
    '../../_base_/seg_runtime.py',
]
model = dict(
    # of 12 blocks; 9, 14, 19, 23 of ViT-L's 24
    backbone=dict(out_indices=(4, 7, 9, 11)),
    decode_head=dict(in_channels=384),
    auxiliary_head=[dict(_base_.auxiliary, in_channels=384, in_index=i) for i in range(3)],
)
optim_wrapper = dict(optimizer=dict(lr=1e-2))
