# Not in the paper: the recipe of Tiny and Small.
_base_ = './elsa-swin-t_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='checkpoints/elsa_swin_base.pth')),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
