_base_ = ['mmdet::_base_/models/mask-rcnn_r50_fpn.py', './coco.py']
model = dict(backbone=dict(_delete_=True))
