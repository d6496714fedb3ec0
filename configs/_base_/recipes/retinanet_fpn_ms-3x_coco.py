# RetinaNet, 36 epochs, training at several scales. Add a backbone and neck.in_channels, of strides 8, 16 and 32.
_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../datasets/coco_detection_ms.py',
    '../schedules/coco_3x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(_delete_=True, out_indices=(1, 2, 3)), neck=dict(start_level=0))
