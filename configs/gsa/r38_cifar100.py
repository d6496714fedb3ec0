_base_ = './r50_cifar100.py'
model = dict(backbone=dict(depth=38))
load_from = 'work_dirs/r38_in1k/epoch_90.pth'
