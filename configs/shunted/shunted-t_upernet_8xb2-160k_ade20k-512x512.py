# Not in the paper: the recipe of Small.
_base_ = './shunted-s_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='tiny', init_cfg=dict(checkpoint='checkpoints/ckpt_T.pth')))
