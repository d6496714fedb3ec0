# Not in the paper: Swin's recipe.
_base_ = ['./_base_/msf-swin-t-g2.py', '../_base_/recipes/upernet_160k_ade20k.py']
model = dict(
    backbone=dict(_base_.pretrained, drop_path_rate=0.3),
    decode_head=dict(in_channels=_base_.in_channels),
    auxiliary_head=dict(in_channels=_base_.in_channels[2]),
)
