_base_ = './_base_/cifar100.py'
model = dict(backbone=dict(depth=101, gsa_stages=(0, 1, 2, 3)))
load_from = 'work_dirs/gsa-r101-all_in1k/epoch_90.pth'
