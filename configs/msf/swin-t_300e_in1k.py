_base_ = './swin-t_in1k.py'
param_scheduler = _base_.param_scheduler_300e
train_cfg = _base_.train_cfg_300e
