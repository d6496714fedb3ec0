# COCO's recipe for VOC: 4 epochs over the data repeated 3 times, MMDetection's schedule for RetinaNet with R50.
_base_ = './coco_1x.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=4, by_epoch=True, milestones=[3], gamma=0.1),
]
train_cfg = dict(max_epochs=4)
