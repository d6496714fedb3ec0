# Table 4 of Shunted, without training at several scales. All rows have Shunted's recipe. MMATTN_ROW=swin-t in the
# environment chooses a row. Drop path is MMDetection's.
_base_ = [
    './_base_/{{$MMATTN_ROW:r50}}.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:r50}}'
rows = {
    'r50': dict(frozen_stages=1, norm_eval=True),  # as MMDetection's
    'swin-t': dict(drop_path_rate=0.2),
    'pvtv2-b2': dict(drop_path_rate=0.1),
}
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, out_indices=(1, 2, 3), **rows[row], init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels[1:], start_level=0),
)
