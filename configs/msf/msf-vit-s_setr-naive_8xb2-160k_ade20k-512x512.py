_base_ = [
    './_base_/msf-vit-s.py',
    './_base_/setr-naive.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k_setr.py',
    '../_base_/seg_runtime.py',
]
model = dict(backbone=dict(_base_.backbone, init_cfg=_base_.pretrained))
optim_wrapper = dict(optimizer=dict(lr=1e-2))
