_base_ = [
    './_base_/mask-rcnn_shunted-b.py',
    '../_base_/datasets/coco.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
