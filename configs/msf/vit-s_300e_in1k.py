_base_ = './vit-s_in1k.py'
param_scheduler, train_cfg = _base_.schedules[300]
