_base_ = './r50_cifar100.py'
model = dict(backbone=dict(depth=101))
load_from = 'work_dirs/r101_in1k/epoch_90.pth'
