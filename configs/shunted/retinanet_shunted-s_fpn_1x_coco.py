_base_ = [
    './_base_/retinanet_shunted-s.py',
    '../_base_/datasets/coco.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/det_runtime.py',
]
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
