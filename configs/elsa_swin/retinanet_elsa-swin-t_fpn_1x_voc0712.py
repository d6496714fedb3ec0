_base_ = [
    './_base_/elsa-swin-t.py',
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/datasets/voc0712.py',
    '../_base_/schedules/voc0712_1x.py',
    '../_base_/det_runtime.py',
]
model = dict(
    backbone=dict(_base_.pretrained, _delete_=True, out_indices=(1, 2, 3), drop_path_rate=0.1),
    neck=dict(in_channels=_base_.in_channels[1:], start_level=0),
    bbox_head=dict(num_classes=20),
)
