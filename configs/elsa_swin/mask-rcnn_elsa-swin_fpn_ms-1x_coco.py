# MMATTN_ROW=elsa-swin-s in the environment chooses a row. Base is not in the paper: from Tiny to Small the rate rises
# from 0.1 to 0.2, and in pre-training from 0.1 to 0.3, with 0.5 for Base. Base gets 0.3 here.
_base_ = [
    './_base_/{{$MMATTN_ROW:elsa-swin-t}}.py',
    './_base_/decay.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:elsa-swin-t}}'
rows = {
    'elsa-swin-t': dict(drop_path_rate=0.1),
    'elsa-swin-s': dict(drop_path_rate=0.2),
    'elsa-swin-b': dict(drop_path_rate=0.3),
    'swin-t': dict(drop_path_rate=0.1),
    'swin-s': dict(drop_path_rate=0.2),
}
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, **rows[row], init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
