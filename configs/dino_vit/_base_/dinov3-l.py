_base_ = './dinov3-s.py'
backbone = dict(arch='vit_large_patch16_dinov3')
channels = 1024
quarters = dict(out_indices=(5, 11, 17, 23))
frozen = dict(frozen_stages=24)
pretrained = dict(backbone, init_cfg=dict(checkpoint='timm:vit_large_patch16_dinov3.lvd1689m'))
