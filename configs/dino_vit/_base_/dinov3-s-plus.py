_base_ = './dinov3-s.py'
backbone = dict(arch='vit_small_plus_patch16_dinov3')
pretrained = dict(backbone, init_cfg=dict(checkpoint='timm:vit_small_plus_patch16_dinov3.lvd1689m'))
