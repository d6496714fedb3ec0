# Not in the paper: ELSA-Swin's recipe, with MMDetection's drop path for Swin. MMATTN_ROW=msf-swin-s in the environment
# chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:msf-swin-t}}.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:msf-swin-t}}'
rows = ['msf-swin-t', 'msf-swin-t-g2', 'msf-swin-s']
model = dict(
    backbone=dict(
        _base_.backbone, _delete_=True, out_indices=(1, 2, 3), drop_path_rate=0.2, init_cfg=_base_.pretrained
    ),
    neck=dict(in_channels=_base_.in_channels[1:], start_level=0),
)
