# Table 3 of Shunted, with training at several scales. All rows have Shunted's recipe. Swin-T and -S, with accuracies of
# another paper, are rows of elsa_swin. MMATTN_ROW=r101 in the environment chooses a row. Drop path is MMDetection's for
# Swin, and MMSegmentation's for Twins-SVT.
_base_ = [
    './_base_/{{$MMATTN_ROW:r50}}.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/det_runtime.py',
]
row = '{{$MMATTN_ROW:r50}}'
resnet = dict(frozen_stages=1, norm_eval=True)  # as MMDetection's
rows = {'r50': resnet, 'twins-svt-s': dict(drop_path_rate=0.2), 'r101': resnet, 'swin-b': dict(drop_path_rate=0.3)}
model = dict(
    backbone=dict(_base_.backbone, _delete_=True, **rows[row], init_cfg=_base_.pretrained),
    neck=dict(in_channels=_base_.in_channels),
)
