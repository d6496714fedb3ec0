# The papers' COCO recipe for 36 epochs.
_base_ = './coco_1x.py'

param_scheduler = [
    _base_.param_scheduler[0],
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1),
]
train_cfg = dict(max_epochs=36)
