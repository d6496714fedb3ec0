_base_ = './resnext-50_in1k.py'
param_scheduler, train_cfg = _base_.schedules[300]
