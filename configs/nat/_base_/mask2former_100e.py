# 100 epochs on COCO, as MMDetection trains Mask2Former with Swin-L.
param_scheduler_100e = dict(end=737500, milestones=[655556, 710184])
train_cfg_100e = dict(max_iters=737500, dynamic_intervals=[(735001, 737500)])
