# ResNet-50, which the paper compares with.
_base_ = './gsa-r50-all_cifar100.py'
model = dict(backbone=dict(gsa_stages=()))
load_from = 'work_dirs/r50_in1k/epoch_90.pth'
