# Not in the paper: ELSA-Swin's recipe. MMATTN_ROW=shunted-b in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:shunted-s}}.py',
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:shunted-s}}'
rows = {'shunted-s': dict(drop_path_rate=0.2), 'shunted-b': dict(drop_path_rate=0.3)}
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, norm_cfg=_base_.sync_norm, **rows[row], init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
