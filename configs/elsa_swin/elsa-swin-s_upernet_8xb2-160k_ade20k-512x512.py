_base_ = './elsa-swin-t_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/elsa_swin_small.pth')))
