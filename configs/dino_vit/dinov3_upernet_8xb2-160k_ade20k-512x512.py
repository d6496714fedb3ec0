# MMSegmentation's recipe for UperNet with MAE's ViT-B. MMATTN_ROW=dinov3-b in the environment chooses a row.
_base_ = [
    './_base_/{{$MMATTN_ROW:dinov3-s}}.py',
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    './_base_/layer_decay.py',
    '../_base_/seg_runtime.py',
]
row = '{{$MMATTN_ROW:dinov3-s}}'
rows = ['dinov3-s', 'dinov3-s-plus', 'dinov3-b', 'dinov3-l']
model = dict(
    backbone=dict(_base_.backbone, **_base_.quarters, drop_path_rate=0.1, init_cfg=_base_.pretrained),
    neck=dict(type='Feature2Pyramid', embed_dim=_base_.channels, norm_cfg=_base_.sync_norm),
    decode_head=dict(in_channels=[_base_.channels] * 4),
    auxiliary_head=dict(in_channels=_base_.channels),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
optim_wrapper = _base_.layer_decay
