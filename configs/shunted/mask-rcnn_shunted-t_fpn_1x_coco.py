# Not in the paper: the recipe of Small and Base.
_base_ = [
    './_base_/shunted-t.py',
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(
        _base_.backbone, _delete_=True, norm_cfg=dict(type='SyncBN'), drop_path_rate=0.1, init_cfg=_base_.pretrained
    ),
    neck=dict(in_channels=_base_.in_channels),
)
