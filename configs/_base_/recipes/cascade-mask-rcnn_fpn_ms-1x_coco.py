# Cascade Mask R-CNN, 12 epochs, training at several scales. Add a backbone and neck.in_channels.
_base_ = [
    '../models/cascade-mask-rcnn_fpn.py',
    '../datasets/coco_instance_ms.py',
    '../schedules/coco_1x.py',
    '../det_runtime.py',
]
model = dict(backbone=dict(_delete_=True))
