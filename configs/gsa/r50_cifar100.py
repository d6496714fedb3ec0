_base_ = './_base_/cifar100.py'
model = dict(backbone=dict(depth=50, gsa_stages=()))
load_from = 'work_dirs/r50_in1k/epoch_90.pth'
