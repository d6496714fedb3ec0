# Not in the paper: the recipe of Small and Base.
_base_ = [
    './_base_/mask-rcnn_shunted-t.py',
    '../_base_/datasets/coco.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
