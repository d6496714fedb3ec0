_base_ = './msf-vit-b_in1k.py'
param_scheduler, train_cfg = _base_.schedules[300]
