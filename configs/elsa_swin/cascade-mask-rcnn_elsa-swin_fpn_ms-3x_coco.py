# MMATTN_ROW=elsa-swin-s in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:elsa-swin-t}}.py',
    './_base_/decay.py',
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:elsa-swin-t}}'
rows = {
    'elsa-swin-t': dict(drop_path_rate=0.2),
    'elsa-swin-s': dict(drop_path_rate=0.75),
    'swin-t': dict(drop_path_rate=0.2),
    'swin-s': dict(drop_path_rate=0.2),
    'swin-b': dict(drop_path_rate=0.3),
}
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, **rows[row], init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
