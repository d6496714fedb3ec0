_base_ = './msf-swin-s-g2_in1k.py'
param_scheduler, train_cfg = _base_.schedules[300]
