_base_ = ['../../_base_/models/cascade-mask-rcnn_fpn.py', './coco.py']
model = dict(backbone=dict(_delete_=True))
