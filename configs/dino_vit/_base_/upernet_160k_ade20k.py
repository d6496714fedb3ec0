# MMSegmentation's recipe for UperNet with MAE's ViT-B.
_base_ = [
    '../../_base_/models/upernet.py',
    '../../_base_/datasets/ade20k.py',
    '../../_base_/schedules/ade20k_160k.py',
    './layer_decay.py',
    '../../_base_/seg_runtime.py',
]
model = dict(
    backbone=dict(drop_path_rate=0.1),
    neck=dict(type='Feature2Pyramid', norm_cfg=_base_.sync_norm),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
optim_wrapper = _base_.layer_decay
