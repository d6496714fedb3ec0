_base_ = './gsa-r50-all_cifar100.py'
model = dict(backbone=dict(depth=38))
load_from = 'work_dirs/gsa-r38-all_in1k/epoch_90.pth'
