_base_ = ['./_base_/swin-t.py', './_base_/swin_decay.py', '../_base_/recipes/upernet_160k_ade20k.py']
model = dict(
    backbone=dict(_base_.pretrained, drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
optim_wrapper = dict(paramwise_cfg=dict(_base_.paramwise_cfg, _delete_=True))
