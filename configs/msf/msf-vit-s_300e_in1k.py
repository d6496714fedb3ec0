_base_ = './msf-vit-s_in1k.py'
param_scheduler, train_cfg = _base_.schedules[300]
