# DINO-4scale, 36 epochs: MMDetection's schedule for R50. No such schedule with Swin-T is published.
_base_ = './dino-4scale_12e_coco.py'
train_cfg = dict(max_epochs=36)
param_scheduler = [dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[30], gamma=0.1)]
