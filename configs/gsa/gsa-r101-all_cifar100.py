_base_ = './gsa-r50-all_cifar100.py'
model = dict(backbone=dict(depth=101))
load_from = 'work_dirs/gsa-r101-all_in1k/epoch_90.pth'
