_base_ = './_base_/cifar100.py'
model = dict(backbone=dict(depth=38, gsa_stages=()))
load_from = 'work_dirs/r38_in1k/epoch_90.pth'
