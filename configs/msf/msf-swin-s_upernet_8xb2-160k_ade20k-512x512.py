_base_ = './msf-swin-t_upernet_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/swin_small_patch4_window7_224.pth')))
