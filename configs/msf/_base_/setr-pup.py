# Table 7.
_base_ = [
    '../../_base_/models/setr-pup.py',
    '../../_base_/datasets/ade20k.py',
    '../../_base_/schedules/ade20k_160k_setr.py',
    '../../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(out_indices=(4, 7, 9, 11)),  # as with the naive heads
    decode_head=dict(in_channels=384),
    auxiliary_head=[dict(_base_.auxiliary, in_channels=384, in_index=i) for i in range(3)],
)
