_base_ = [
    './_base_/mask-rcnn_shunted-s.py',
    '../_base_/datasets/coco_ms.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/det_runtime.py',
]
