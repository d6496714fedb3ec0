# VOC: optimizer and warm-up of COCO's 1x schedule, and 4 epochs as MMDetection has for RetinaNet with R50. The dataset
# repeats VOC 3 times in each epoch.
_base_ = './coco_1x.py'

param_scheduler = [
    _base_.param_scheduler[0],
    dict(type='MultiStepLR', begin=0, end=4, by_epoch=True, milestones=[3], gamma=0.1),
]
train_cfg = dict(max_epochs=4)
