# Not in the paper.
_base_ = ['./_base_/shunted-l.py', '../_base_/recipes/upernet_160k_ade20k.py']
model = dict(
    backbone=dict(_base_.pretrained, norm_cfg=_base_.sync_norm, drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
