_base_ = [
    './_base_/mask-rcnn_elsa-swin-t.py',
    '../_base_/datasets/coco_ms.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/det_runtime.py',
]
model = dict(backbone=dict(drop_path_rate=0.2))
