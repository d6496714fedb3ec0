_base_ = [
    './_base_/mask-rcnn_elsa-swin-b.py',
    '../_base_/datasets/coco_ms.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
# Not in the paper. Small rises from 0.1 to 0.2 over Tiny, pre-training from 0.1 over 0.3 to 0.5: Base gets 0.3.
model = dict(backbone=dict(drop_path_rate=0.3))
