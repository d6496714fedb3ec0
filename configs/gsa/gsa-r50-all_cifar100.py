# Table 6.
_base_ = ['./_base_/gsa-r50.py', './_base_/cifar100.py']
model = dict(backbone=dict(_base_.backbone, gsa_stages=(0, 1, 2, 3)), head=dict(in_channels=_base_.in_channels[-1]))
load_from = 'work_dirs/gsa-r50-all_in1k/epoch_90.pth'
