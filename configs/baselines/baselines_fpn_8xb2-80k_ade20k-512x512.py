# Table 5 of Shunted, Semantic FPN. All rows have Shunted's recipe. MMATTN_ROW=swin-t in the environment chooses a row.
# Drop path is Shunted's, and MMSegmentation's for Twins-SVT.
_base_ = [
    './_base_/{{$MMATTN_ROW:r50-v1c}}.py',
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_80k.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:r50-v1c}}'
rows = {
    'r50-v1c': dict(norm_cfg=_base_.sync_norm),
    'swin-t': dict(drop_path_rate=0.2),
    'twins-svt-s': dict(drop_path_rate=0.2),
}
model = dict(
    backbone=dict(_base_.backbone, **rows[row], init_cfg=_base_.pretrained), neck=dict(in_channels=_base_.in_channels)
)
