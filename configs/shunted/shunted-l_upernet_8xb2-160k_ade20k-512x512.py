# Not in the paper: the recipe of Small, but from scratch, since weights of Large were never released.
_base_ = './shunted-s_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='large', init_cfg=dict(_delete_=True, type='TruncNormal', layer='Linear', std=0.02)),
    decode_head=dict(in_channels=[64, 128, 320, 768]),
    auxiliary_head=dict(in_channels=320),
)
